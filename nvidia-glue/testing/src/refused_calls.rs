//! System calls that the kernel refuses to a thread of a test, as it would to whoever is confined.

use std::thread;

use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};

/// Runs `test` in a thread to which these calls answer the error, where their argument of that
/// number has that value. False, and nothing is run: it takes root.
pub fn with(calls: &[&str], argument: Option<(u32, u64)>, errno: i32, test: impl FnOnce() + Send) -> bool {
    if !nix::unistd::geteuid().is_root() {
        return false;
    }
    let run = || {
        let mut filter = ScmpFilterContext::new(ScmpAction::Allow).unwrap();
        filter.set_ctl_nnp(false).unwrap();
        let compared = argument.map(|(number, value)| ScmpArgCompare::new(number, ScmpCompareOp::Equal, value));
        let compared: Vec<_> = compared.into_iter().collect();
        for call in calls {
            let call = ScmpSyscall::from_name(call).unwrap();
            filter.add_rule_conditional(ScmpAction::Errno(errno), call, &compared).unwrap();
        }
        filter.load().unwrap();
        test();
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap();
    true
}
