//! Every failing system call and every kill point: an error, or a SIGKILL, at the N-th system call
//! of each kind in each process of egpu's, in each step of a container's life.
//!
//! After each: the step succeeds or fails with its reason, in bounded time; a container that is
//! there is as without the fault; the id can be used again; and then nothing is left.
//! `EGPU_FAULT_SECONDS` sets how long points are tried (0: all of them), `EGPU_FAULT_SEED` which
//! come first, `EGPU_FAULT_SKIP` how many of them an earlier run has tried, `EGPU_FAULT_ONLY` a
//! part of their names, `EGPU_FAULT_WORKERS` how many at a time.

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
    ContainerdRelease, Node, Setup,
    injector::{Fault, Injector, Point},
    leftovers,
};
use rand::{SeedableRng as _, rngs::SmallRng, seq::SliceRandom as _};

use self::{
    life::{Failure, Life, Step, settle},
    table::Table,
};
use crate::case::{Case, Skip};

/// A shim that nobody connects to any more ends by itself within half a minute.
const GRACE: Duration = Duration::from_secs(90);
/// Nodes that work at the same time.
const WORKERS: u64 = 2;

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

/// The result of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// The step never got there.
    NotReached,
    Success,
    /// It failed with a reason.
    CleanError,
    /// The shim or the command ended.
    Lost,
    /// Something that must not be.
    Violation(String),
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn injected(node: &Node) {
    let seed = setting("EGPU_FAULT_SEED").unwrap_or(41);
    let (mut trials, usual) = points(node);
    let limit = match setting("EGPU_FAULT_SECONDS") {
        Some(0) => Duration::MAX,
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::from_secs(120),
    };
    let only = std::env::var("EGPU_FAULT_ONLY").unwrap_or_default();
    trials.retain(|trial| trial.to_string().contains(&only));
    let count = trials.len();
    put_in_order(&mut trials, seed);
    let done = usize::try_from(setting("EGPU_FAULT_SKIP").unwrap_or_default()).expect("a number of points");
    // They are taken from the end.
    trials.truncate(count.saturating_sub(done));
    let begin = Instant::now();
    let work = Work { trials: Mutex::new(trials), until: begin.checked_add(limit), usual, table: Mutex::default() };
    std::thread::scope(|scope| {
        for worker in 0..setting("EGPU_FAULT_WORKERS").unwrap_or(WORKERS) {
            let work = &work;
            scope.spawn(move || while !work.on_a_node(node.release(), worker) {});
        }
    });
    let table = work.table.into_inner().unwrap();
    println!("faults: seed {seed}, {} of {count} points in {} s\n{table}", table.tried(), begin.elapsed().as_secs());
    assert!(table.violations().is_empty(), "violations:\n{}", table.violations().join("\n"));
}

/// By the seed; first one of each process and step, then another one of each.
fn put_in_order(trials: &mut [Trial], seed: u64) {
    trials.shuffle(&mut SmallRng::seed_from_u64(seed));
    let mut taken: BTreeMap<_, u32> = BTreeMap::new();
    trials.sort_by_cached_key(|trial| {
        let kind = (trial.step, trial.has_share, trial.point.role.clone(), trial.fault == Fault::Kill);
        let number = taken.entry(kind).or_default();
        *number += 1;
        Reverse(*number)
    });
}

/// State that the workers share.
struct Work {
    trials: Mutex<Vec<Trial>>,
    /// `None`: until there is none left.
    until: Option<Instant>,
    /// A container's process as it is without a fault, with a share and without.
    usual: [Vec<String>; 2],
    table: Mutex<Table>,
}

impl Work {
    fn next(&self) -> Option<Trial> {
        let is_over = self.until.is_some_and(|until| Instant::now() > until);
        if is_over { None } else { self.trials.lock().unwrap().pop() }
    }

    /// Goes through trials until one leaves something on the node, which goes with it. Returns
    /// whether all is done.
    fn on_a_node(&self, release: &ContainerdRelease, worker: u64) -> bool {
        let node = Node::start(release, &Setup::default());
        let mut injector = injector(&node);
        let mut number = 0;
        while let Some(trial) = self.next() {
            number += 1;
            let id = format!("f{worker}-{number}");
            let outcome = self
                .attempt(&node, &mut injector, &id, &trial)
                .and_then(|outcome| again(&node, &mut injector, &id, &trial).map(|()| outcome))
                .unwrap_or_else(Outcome::Violation);
            let is_violation = matches!(outcome, Outcome::Violation(_));
            self.table.lock().unwrap().add(&trial, outcome);
            if is_violation {
                return false;
            }
        }
        true
    }

    /// One fault: what the step came to. `Err`: what must not be.
    fn attempt(&self, node: &Node, injector: &mut Injector, id: &str, trial: &Trial) -> Result<Outcome, String> {
        injector.watch();
        let mut life = Life::new(node, injector, id, trial.has_share);
        if let Err(failure) = lead_to(&mut life, trial.step) {
            let _ = life.end();
            return Err(format!("a step before it fails: {failure:?}"));
        }
        life.injector.inject(&trial.point, trial.fault);
        let result = life.take(trial.step);
        if result.is_ok() {
            settle_step(&life, trial.step);
        }
        let (_, has_been) = life.injector.stop();
        let wrong = match (trial.step, &result) {
            (Step::Exec, Ok(()) | Err(Failure::Refused(_))) => settle(Duration::from_secs(10), || life.strangers()),
            (Step::Create | Step::Start, Ok(())) => self.unlike_usual(&mut life, trial),
            _ => Vec::new(),
        };
        life.end()?;
        if !wrong.is_empty() {
            return Err(format!("{wrong:?}, after {result:?}"));
        }
        match result {
            _ if !has_been => Ok(Outcome::NotReached),
            Ok(()) => Ok(Outcome::Success),
            Err(Failure::Hangs) => Err("it hangs".to_owned()),
            Err(Failure::Refused(why) | Failure::Absent(why)) if why.trim().is_empty() => {
                Err("an error without a reason".to_owned())
            }
            Err(Failure::Refused(_) | Failure::Absent(_)) => Ok(Outcome::CleanError),
            Err(Failure::Lost(_)) => Ok(Outcome::Lost),
        }
    }

    /// Rights and mounts that the container's process lacks or has besides, where its create or
    /// start succeeded.
    fn unlike_usual(&self, life: &mut Life<'_>, trial: &Trial) -> Vec<String> {
        // A mediator that was killed after the answer has ended the container.
        if trial.step == Step::Create && life.take(Step::Start).is_err() {
            return Vec::new();
        }
        settle_step(life, Step::Start);
        let (usual, facts) = (&self.usual[usize::from(trial.has_share)], life.facts());
        if facts.is_empty() {
            return Vec::new();
        }
        let lacks = usual.iter().filter(|fact| !facts.contains(fact)).map(|fact| format!("lacks {fact}"));
        lacks.chain(facts.iter().filter(|fact| !usual.contains(fact)).map(|fact| format!("has {fact}"))).collect()
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

/// All points of all steps, and what containers are like.
fn points(node: &Node) -> (Vec<Trial>, [Vec<String>; 2]) {
    let mut injector = injector(node);
    let mut trials = Vec::new();
    let mut usual = [Vec::new(), Vec::new()];
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
            if step == Step::Start {
                usual[usize::from(has_share)] = life.facts();
            }
            life.end().expect("an end without a fault");
            trials.extend(points.into_iter().map(|(point, fault)| Trial { step, has_share, point, fault }));
        }
    }
    (trials, usual)
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

/// The same id once more, without a fault; then nothing is left.
fn again(node: &Node, injector: &mut Injector, id: &str, trial: &Trial) -> Result<(), String> {
    let mut once_more = || {
        let mut life = Life::new(node, injector, id, trial.has_share);
        let lived = lead_to(&mut life, Step::Delete);
        life.end().map_err(|why| format!("the id again: {why}"))?;
        Ok::<_, String>(lived)
    };
    // A shim that has lost its connection has the container until it ends; the first try ends it.
    let lived = match once_more()? {
        Err(Failure::Refused(why)) if why.contains("exists already") => once_more()?,
        lived => lived,
    };
    lived.map_err(|failure| format!("the id cannot be used again: {failure:?}"))?;
    let left = settle(GRACE, || left_of(node, id));
    if left.is_empty() { Ok(()) } else { Err(format!("left: {left:#?}")) }
}

/// Leftovers on the node: this container is its only one.
fn left_of(node: &Node, id: &str) -> Vec<String> {
    let mut left = leftovers::find(node, &[id.to_owned()]);
    for directory in ["inject", "waiting"] {
        let entries = std::fs::read_dir(node.directory().join("egpu").join(directory)).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| format!("in {directory}: {}", entry.path().display())));
    }
    left
}
