//! Every failing system call and every kill point: an error, or a SIGKILL, at the N-th system call
//! of each kind in each process of egpu's, in each step of a container's life.
//!
//! After each: the step succeeds or fails with its reason, in bounded time; the id can be used
//! again; and then nothing is left. `EGPU_FAULT_SECONDS` sets how long points are tried (0: all of
//! them), `EGPU_FAULT_SEED` which come first, `EGPU_FAULT_ONLY` a part of their names.

mod life;
mod table;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

use integration::{
    Node, Setup,
    injector::{Fault, Injector, Point},
    leftovers,
};
use rand::{SeedableRng as _, rngs::SmallRng, seq::SliceRandom as _};

use self::{
    life::{Failure, Life, Step, settle},
    table::Table,
};
use crate::case::{Case, Skip};

/// Time for what is on its way to its end.
const GRACE: Duration = Duration::from_secs(4);
/// A shim that nobody connects to any more ends by itself within half a minute.
const DISOWNED: Duration = Duration::from_secs(90);

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::egpu("faults::injected", injected).once().needing(can_trace)]
}

fn can_trace() -> Skip {
    let directory = tempfile::tempdir().expect("make a directory");
    Injector::start(directory.path(), &[]).map(drop)
}

/// A fault, and where.
#[derive(Debug, Clone)]
struct Trial {
    step: Step,
    has_share: bool,
    point: Point,
    fault: Fault,
}

impl fmt::Display for Trial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, has_share, point, fault } = self;
        let share = if *has_share { "with a share" } else { "without" };
        write!(formatter, "{step:?} {share}: {fault} at {point}")
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// The step never got there.
    NotReached,
    Success,
    /// It failed with a reason.
    CleanError(String),
    /// The shim or the command ended.
    Lost(String),
    /// What must not be.
    Violation(String),
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn injected(node: &Node) {
    let seed = setting("EGPU_FAULT_SEED").unwrap_or(41);
    let limit = match setting("EGPU_FAULT_SECONDS").unwrap_or(120) {
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds),
    };
    let begin = Instant::now();
    let mut trials = points(node);
    let only = std::env::var("EGPU_FAULT_ONLY").unwrap_or_default();
    trials.retain(|trial| trial.to_string().contains(&only));
    let count = trials.len();
    trials.shuffle(&mut SmallRng::seed_from_u64(seed));
    // Taken from the end: first one of each process and step, then another one of each.
    let mut taken = BTreeMap::new();
    trials.sort_by_cached_key(|trial| {
        let of_kind = taken.entry((trial.step, trial.has_share, trial.point.role.clone(), trial.fault == Fault::Kill));
        let number: &mut u32 = of_kind.or_default();
        *number += 1;
        Reverse(*number)
    });
    let (queue, table) = (Mutex::new(trials), Mutex::new(Table::default()));
    std::thread::scope(|scope| {
        for worker in 0..setting("EGPU_FAULT_WORKERS").unwrap_or(2) {
            let (queue, table) = (&queue, &table);
            scope.spawn(move || work(node, worker, begin, limit, queue, table));
        }
    });
    let table = table.into_inner().unwrap();
    println!("faults: seed {seed}, {} of {count} points in {} s\n{table}", table.tried(), begin.elapsed().as_secs());
    assert!(table.violations().is_empty(), "{} violations:\n{}", table.violations().len(), table.violations().join("\n"));
}

/// Takes trials from the queue until time is over, on nodes of its own.
fn work(
    first: &Node,
    worker: u64,
    begin: Instant,
    limit: Duration,
    queue: &Mutex<Vec<Trial>>,
    table: &Mutex<Table>,
) {
    let mut number = 0;
    let mut is_over = false;
    while !is_over {
        let node = Node::start(first.release(), &Setup::default());
        let mut injector = injector(&node);
        let mut late = Vec::new();
        loop {
            let next = if begin.elapsed() < limit { queue.lock().unwrap().pop() } else { None };
            let Some(trial) = next else {
                is_over = true;
                break;
            };
            number += 1;
            let id = format!("f{worker}-{number}");
            let outcome = attempt(&node, &mut injector, &id, &trial);
            let outcome = outcome.and_then(|outcome| again(&node, &mut injector, &id, &trial, &mut late).map(|()| outcome));
            let outcome = outcome.unwrap_or_else(Outcome::Violation);
            let failed = matches!(outcome, Outcome::Violation(_));
            table.lock().unwrap().add(&trial, outcome);
            if failed {
                break;
            }
        }
        // Not the next trial's fault: what one has left goes with its node.
        let left = settle(DISOWNED, || leftovers_of(&node, &late.iter().map(|(id, _)| id).collect::<Vec<_>>()));
        for (id, trial) in &late {
            let of_it: Vec<_> = left.iter().filter(|line| line.contains(id)).cloned().collect();
            if !of_it.is_empty() {
                table.lock().unwrap().add(trial, Outcome::Violation(format!("left after a minute: {of_it:?}")));
            }
        }
    }
}

fn injector(node: &Node) -> Injector {
    let environment = [
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("EGPU_CONFIG", node.directory().join("egpu.toml").display().to_string()),
        ("TTRPC_ADDRESS", format!("{}.ttrpc", node.socket().display())),
    ];
    Injector::start(node.directory(), &environment).expect("it could be traced a moment ago")
}

/// All points of all steps.
fn points(node: &Node) -> Vec<Trial> {
    let mut injector = injector(node);
    let mut trials = Vec::new();
    for has_share in [true, false] {
        for step in Step::ALL.into_iter().filter(|&step| has_share || step != Step::Set) {
            let id = format!("count-{step:?}-{has_share}").to_lowercase();
            let mut life = Life::new(node, &mut injector, &id, has_share);
            life.injector.watch();
            lead_to(&mut life, step).expect("steps without a fault");
            life.injector.count();
            life.take(step).expect("a step without a fault");
            settle_step(&life, step);
            let (points, _) = life.injector.stop();
            life.end().expect("an end without a fault");
            let faults = points.into_iter().flat_map(|(point, faults)| faults.into_iter().map(move |fault| (point.clone(), fault)));
            trials.extend(faults.map(|(point, fault)| Trial { step, has_share, point, fault }));
        }
    }
    trials
}

fn lead_to(life: &mut Life<'_>, step: Step) -> Result<(), Failure> {
    step.before().iter().try_for_each(|&step| life.take(step))?;
    match step {
        Step::DeleteCleans => life.lose_shim(),
        Step::Begin
        | Step::Create
        | Step::Start
        | Step::Exec
        | Step::Update
        | Step::Set
        | Step::Kill
        | Step::Delete
        | Step::DeleteAnswers => {}
    }
    Ok(())
}

/// Start answers before init has executed its program.
fn settle_step(life: &Life<'_>, step: Step) {
    if step == Step::Start {
        settle(Duration::from_secs(1), || {
            let program = std::fs::read_link(format!("/proc/{}/exe", life.pid())).unwrap_or_default();
            if program.ends_with("busybox") { vec![] } else { vec![String::new()] }
        });
    }
}

/// One fault: what the step came to. `Err`: what must not be.
fn attempt(node: &Node, injector: &mut Injector, id: &str, trial: &Trial) -> Result<Outcome, String> {
    injector.watch();
    let mut life = Life::new(node, injector, id, trial.has_share);
    if let Err(failure) = lead_to(&mut life, trial.step) {
        let _ = life.end();
        return Err(format!("not the fault's doing: a step before it fails: {failure:?}"));
    }
    life.injector.inject(&trial.point, trial.fault);
    let result = life.take(trial.step);
    if result.is_ok() {
        settle_step(&life, trial.step);
    }
    let (_, has_been) = life.injector.stop();
    let strangers = match (trial.step, &result) {
        (Step::Exec, Ok(()) | Err(Failure::Refused(_))) => settle(GRACE, || life.strangers()),
        _ => Vec::new(),
    };
    life.end()?;
    if !strangers.is_empty() {
        return Err(format!("{strangers:?}, after {result:?}"));
    }
    match result {
        _ if !has_been => Ok(Outcome::NotReached),
        Ok(()) => Ok(Outcome::Success),
        Err(Failure::Hangs) => Err("it hangs".to_owned()),
        Err(Failure::Refused(why) | Failure::Absent(why)) if why.trim().is_empty() => Err("an error without a reason".to_owned()),
        Err(Failure::Refused(why) | Failure::Absent(why)) => Ok(Outcome::CleanError(why)),
        Err(Failure::Lost(why)) => Ok(Outcome::Lost(why)),
    }
}

/// The same id once more, without a fault; then nothing is left.
fn again(
    node: &Node,
    injector: &mut Injector,
    id: &str,
    trial: &Trial,
    late: &mut Vec<(String, Trial)>,
) -> Result<(), String> {
    let mut life = Life::new(node, injector, id, trial.has_share);
    let lived = lead_to(&mut life, Step::Delete);
    life.end().map_err(|why| format!("the id again: {why}"))?;
    lived.map_err(|failure| format!("the id cannot be used again: {failure:?}"))?;
    let left = settle(GRACE, || leftovers_of(node, &[&id.to_owned()]));
    let is_late = |line: &String| line.contains("containerd-shim") || line.contains("egpu-helper") || line.contains("socket") || line.contains("/shims/");
    if left.iter().all(is_late) {
        if !left.is_empty() {
            late.push((id.to_owned(), trial.clone()));
        }
        return Ok(());
    }
    Err(format!("left: {left:#?}"))
}

/// What is left of these containers, and what names none of them.
fn leftovers_of(node: &Node, ids: &[&String]) -> Vec<String> {
    let own: Vec<String> = ids.iter().map(|&id| id.clone()).collect();
    let mut left = leftovers::find(node, &own);
    for directory in ["inject", "waiting"] {
        let entries = std::fs::read_dir(node.directory().join("egpu").join(directory)).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| format!("in {directory}: {}", entry.path().display())));
    }
    // Also what of other ids is left is this one's: they had nothing left, or were late.
    left
}
