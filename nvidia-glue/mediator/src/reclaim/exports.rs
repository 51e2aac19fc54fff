//! Exports to files that no process has any more.

use std::time::{Duration, Instant};

use crate::{Session, locks::lock, objects::named_locks::LockName};

impl Session {
    /// Lets go of what was exported to files that no process has any more, once they have been gone
    /// for as long as one can be on its way through a socket. That is less where memory is held by
    /// nothing else: whoever exports keeps it until it has arrived.
    pub(crate) fn drop_unheld_tokens(&self, [transit, alone]: [Duration; 2]) {
        let all = lock(&self.objects.files).all_tokens();
        for token in all {
            if self.is_held(&token.token, token.exporter) {
                lock(&self.objects.files).set_unheld(token.id, None);
                continue;
            }
            let is_alone = lock(&self.objects.accounts).held_by_exports_alone(token.id).0 > 0;
            let since = token.unheld_since.unwrap_or_else(Instant::now);
            if since.elapsed() < if is_alone { alone } else { transit } {
                lock(&self.objects.files).set_unheld(token.id, Some(since));
                continue;
            }
            self.objects.locks.with(&[LockName::Export(token.id)], || {
                // The mediator's file closes with its last holder; then the driver lets go of what
                // was exported to it.
                lock(&self.objects.files).remove_token(token.id);
                lock(&self.objects.accounts).export_file_gone(token.id);
            });
        }
    }
}
