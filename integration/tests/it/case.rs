//! A test, and its trials: one on each containerd.

use std::sync::{Mutex, PoisonError};

use integration::{ContainerdRelease, EGPU_RUNTIME, Node, Setup, egpu::on_real_cards, is_egpu, node::shim_directory};
use libtest_mimic::{Completion, Failed, Trial};

/// The reason for which a test cannot run here, if there is one.
pub(crate) type Skip = Result<(), String>;

/// One test.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// `module::name`.
    pub(crate) name: &'static str,
    /// Node that it wants.
    pub(crate) setup: fn() -> Setup,
    /// The test.
    pub(crate) run: fn(&Node),
    /// True if other runtimes are expected to pass it too.
    pub(crate) any_runtime: bool,
    /// Needs that the machine must meet.
    pub(crate) needs: [fn() -> Skip; 2],
    /// Versions of containerd that it is about, by their beginning; empty: all.
    pub(crate) versions: &'static [&'static str],
    /// Only on the newest containerd: it is about something else.
    pub(crate) once: bool,
    /// Use of the machine's own cards, or the reason against it.
    pub(crate) real_cards: RealCards,
    /// True if no other of this kind may run beside it: they measure time.
    pub(crate) one_at_a_time: bool,
}

/// Held by the one that runs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Use of the machine's own cards by a test.
#[derive(Clone, Copy)]
pub(crate) enum RealCards {
    /// Nobody has said: it is no test of cards.
    Unsaid,
    /// As it stands.
    Fine,
    /// No: the reason for which it needs simulated ones.
    No(&'static str),
}

impl Case {
    /// A test of the Task service that every runtime must pass.
    pub(crate) fn plain(name: &'static str, run: fn(&Node)) -> Self {
        let needs: [fn() -> Skip; 2] = [|| Ok(()); 2];
        let (setup, real_cards) = (Setup::default, RealCards::Unsaid);
        Self {
            name,
            setup,
            run,
            any_runtime: true,
            needs,
            versions: &[],
            once: false,
            real_cards,
            one_at_a_time: false,
        }
    }

    /// A test of what only egpu does.
    pub(crate) fn egpu(name: &'static str, run: fn(&Node)) -> Self {
        Self { any_runtime: false, ..Self::plain(name, run) }
    }

    /// On another node than the default one.
    pub(crate) fn on(self, setup: fn() -> Setup) -> Self {
        Self { setup, ..self }
    }

    /// Only where `needs` agrees.
    pub(crate) fn needing(self, needs: fn() -> Skip) -> Self {
        Self { needs: [needs, self.needs[1]], ..self }
    }

    /// Only where this agrees as well: what a whole module needs.
    pub(crate) fn also_needing(self, needs: fn() -> Skip) -> Self {
        Self { needs: [self.needs[0], needs], ..self }
    }

    /// Not on the machine's own cards.
    pub(crate) fn only_simulated(self, why: &'static str) -> Self {
        Self { real_cards: RealCards::No(why), ..self }
    }

    /// On the machine's own cards, too, unless it has been said that it cannot.
    pub(crate) fn on_real_cards_too(self) -> Self {
        match self.real_cards {
            RealCards::Unsaid => Self { real_cards: RealCards::Fine, ..self },
            RealCards::Fine | RealCards::No(_) => self,
        }
    }

    /// Returns the reason for which it cannot run on the machine's own cards, if it is to and
    /// cannot.
    fn needs_simulated(self) -> Option<String> {
        if !on_real_cards() {
            return None;
        }
        match self.real_cards {
            RealCards::Unsaid => Some("nothing in it depends on a card's driver".to_owned()),
            RealCards::No(why) => Some(format!("needs simulated cards: {why}")),
            RealCards::Fine if !(self.setup)().egpu.has_any_cards() => {
                Some("needs simulated cards: of a size or a kind of its own".to_owned())
            }
            RealCards::Fine => None,
        }
    }

    /// Only on these versions of containerd.
    pub(crate) fn on_containerd(self, versions: &'static [&'static str]) -> Self {
        Self { versions, ..self }
    }

    /// Only on the newest containerd there is.
    pub(crate) fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// Never beside another one of which this is said.
    pub(crate) fn one_at_a_time(self) -> Self {
        Self { one_at_a_time: true, ..self }
    }

    fn is_about(self, release: &ContainerdRelease) -> bool {
        self.versions.is_empty() || self.versions.iter().any(|version| release.version.starts_with(version))
    }

    fn skip_reason(self) -> Option<String> {
        if !self.any_runtime && !is_egpu() {
            return Some(format!("not a test of {}", integration::runtime()));
        }
        if is_egpu() && !shim_directory().join("containerd-shim-egpu-v1").exists() {
            return Some(format!("no shim for {EGPU_RUNTIME} in {}: cargo build first", shim_directory().display()));
        }
        self.needs_simulated().or_else(|| self.needs.into_iter().find_map(|needs| needs().err()))
    }

    fn execute(self, release: &ContainerdRelease) {
        let _alone = self.one_at_a_time.then(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner));
        let node = Node::start(release, &(self.setup)());
        (self.run)(&node);
        node.finish();
    }
}

/// Every case on every containerd.
pub(crate) fn trials(releases: &[ContainerdRelease], cases: &[Case]) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut runs = Vec::new();
    for major in ["1", "2"] {
        let of_major: Vec<&ContainerdRelease> = releases.iter().filter(|release| release.major() == major).collect();
        if of_major.is_empty() && std::env::var_os("EGPU_TEST_CONTAINERD").is_none() {
            trials.push(missing(major));
        }
        for release in of_major {
            let is_newest = releases.last().is_some_and(|newest| newest.version == release.version);
            let about = cases.iter().filter(|case| case.is_about(release) && (is_newest || !case.once));
            runs.extend(about.map(|&case| (release.clone(), case)));
        }
    }
    trials.extend(spread(runs).into_iter().map(|(release, case)| trial(release, case)));
    trials
}

/// Those that run one at a time evenly among the others: in a row they would keep all threads but
/// one waiting.
fn spread(runs: Vec<(ContainerdRelease, Case)>) -> Vec<(ContainerdRelease, Case)> {
    let (alone, others): (Vec<_>, Vec<_>) = runs.into_iter().partition(|(_, case)| case.one_at_a_time);
    let every = (others.len() / (alone.len() + 1)).max(1);
    let mut alone = alone.into_iter();
    let mut all = Vec::new();
    for (index, other) in others.into_iter().enumerate() {
        if index % every == 0 {
            all.extend(alone.next());
        }
        all.push(other);
    }
    all.extend(alone);
    all
}

fn trial(release: ContainerdRelease, case: Case) -> Trial {
    let skip = move || case.skip_reason().map_or(Ok(()), Err);
    trial_of(&release.version.clone(), case.name, skip, move || case.execute(&release))
}

/// A trial that has no node.
pub(crate) fn trial_of(
    version: &str,
    name: &str,
    skip: impl Fn() -> Skip + Send + 'static,
    run: impl FnOnce() + std::panic::UnwindSafe + Send + 'static,
) -> Trial {
    let name = format!("containerd-{version}/{name}");
    Trial::ignorable_test(name.clone(), move || {
        if let Err(reason) = skip() {
            return Ok(skipped(&name, reason));
        }
        match std::panic::catch_unwind(run) {
            Ok(()) => Ok(Completion::Completed),
            Err(payload) => Err(Failed::from(message(payload.as_ref()))),
        }
    })
}

fn missing(major: &str) -> Trial {
    let name = format!("containerd-{major}/all");
    let reason = format!("no containerd {major}.x: integration/setup-containerd.sh unpacks one");
    Trial::ignorable_test(name.clone(), move || Ok(skipped(&name, reason)))
}

fn skipped(name: &str, reason: String) -> Completion {
    println!("skipped: {name}: {reason}");
    Completion::ignored_with(reason)
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}
