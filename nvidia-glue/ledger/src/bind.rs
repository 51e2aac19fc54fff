//! Binding: a pending grant becomes the one of a container that exists.

use std::path::PathBuf;

use crate::{
    BindError, ContainerKey, GrantState, Ledger, ProcessId, Record,
    decision_log::{DecisionLog, Event, Line},
    index::Index,
    liveness::is_plain_path,
};

impl Ledger {
    /// Notes that the container exists: its init, its mediator if its driver calls are mediated,
    /// and the cgroup directories in which it really is.
    ///
    /// # Errors
    /// [`BindError`]; the grant is then still pending, and the create must fail and release it.
    pub fn bind(
        &self,
        container: &ContainerKey,
        init: ProcessId,
        mediator: Option<ProcessId>,
        cgroups: &[PathBuf],
        log: &DecisionLog,
    ) -> Result<Record, BindError> {
        if let Err((cgroup, problem)) = check_cgroups(cgroups) {
            return Err(BindError::Cgroup { container: Box::new(container.clone()), cgroup, problem });
        }
        let failed = |source| BindError::Store { container: Box::new(container.clone()), source };
        let locked = self.store.lock().map_err(failed)?;
        let found = self.store.find_record(container).map_err(failed)?;
        let Some(mut record) = found else { return Err(BindError::NoGrant { container: Box::new(container.clone()) }) };
        record.state = GrantState::Bound;
        record.init = Some(init);
        record.mediator = mediator;
        record.cgroups = strings(cgroups);
        // Another build's may have what changes with it.
        let written = match Index::is_current(&locked).map_err(failed)? {
            true => locked.write_record_beside_index(&record),
            false => locked.write_record(&record),
        };
        written.map_err(failed)?;
        let line = Line::new(Event::Bind, &record).field("pid", init.pid).field("grant", &record.grant_id);
        drop(locked);
        log.write(&[match mediator {
            Some(mediator) => line.field("mediator", mediator.pid),
            None => line,
        }]);
        Ok(record)
    }
}

/// `(the path, what is wrong with it)`
pub(super) fn check_cgroups(cgroups: &[PathBuf]) -> Result<(), (PathBuf, &'static str)> {
    if cgroups.is_empty() {
        let problem = "none is given, so nobody could tell whether the container is alive";
        return Err((PathBuf::new(), problem));
    }
    for cgroup in cgroups {
        if !is_plain_path(cgroup) || cgroup.to_str().is_none() {
            return Err((cgroup.clone(), "the path must be absolute, UTF-8, and without `.` and `..`"));
        }
    }
    Ok(())
}

pub(super) fn strings(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
}
