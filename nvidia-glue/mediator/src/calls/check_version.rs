//! `NV_ESC_CHECK_VERSION_STR`: whether a program's libraries are of the driver's release.
//!
//! The driver writes five lines into the kernel's log for each string that is not its own. So it is
//! asked first which its own is, and only what it accepts gets there. Releases before 530 tell that
//! only when they refuse a string: the first one (src/nvidia/arch/nvalloc/unix/src/osapi.c,
//! `rm_perform_version_check`).

use abi::{Status, params::nv_ioctl_rm_api_version_t};

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
};

/// `NV_RM_API_VERSION_CMD_RELAXED`, `NV_RM_API_VERSION_CMD_QUERY` (up to 525 `_OVERRIDE`).
const RELAXED: u32 = b'1' as u32;
const QUERY: u32 = b'2' as u32;

impl Session {
    pub(crate) fn check_version(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let command = nv_ioctl_rm_api_version_t::cmd.get(&flight.args).unwrap_or_default();
        if command == QUERY {
            flight.execute(self.driver.as_ref())?;
            return flight.finish();
        }
        let own = self.own_version(flight)?;
        if let Some(own) = own.filter(|own| !is_accepted(command, text(&flight.args), own)) {
            flight.confirm()?;
            // The reply is that the question was understood.
            let _ = nv_ioctl_rm_api_version_t::reply.set(&mut flight.args, 1);
            let text_at = nv_ioctl_rm_api_version_t::versionString.at();
            if let Some(text) = flight.args.get_mut(text_at..text_at + own.len()) {
                text.copy_from_slice(&own);
            }
            return refused(flight);
        }
        let asked = text(&flight.args).to_vec();
        match flight.execute(self.driver.as_ref()) {
            Ok(_) => flight.finish(),
            Err(CallEnd::Errno(libc::EINVAL)) => {
                let told = text(&flight.args);
                if told != asked {
                    *lock(&self.driver_version) = Some(told.to_vec());
                }
                refused(flight)
            }
            Err(end) => Err(end),
        }
    }

    /// Returns the version that the driver says it has; `None`: it does not say.
    fn own_version(&self, flight: &mut InFlightCall<'_>) -> Result<Option<Vec<u8>>, CallEnd> {
        if let Some(own) = lock(&self.driver_version).clone() {
            return Ok(Some(own));
        }
        let asked = flight.args.clone();
        flight.args.fill(0);
        if !nv_ioctl_rm_api_version_t::cmd.set(&mut flight.args, QUERY) {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        flight.execute(self.driver.as_ref())?;
        let own = text(&flight.args).to_vec();
        flight.args = asked;
        // A release that does not know the question says yes to it.
        if own.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        *lock(&self.driver_version) = Some(own.clone());
        Ok(Some(own))
    }
}

/// The call fails, and the struct is written back all the same.
fn refused(flight: &InFlightCall<'_>) -> Result<Answer, CallEnd> {
    flight.finish()?;
    Err(CallEnd::Errno(libc::EINVAL))
}

fn text(args: &[u8]) -> &[u8] {
    args.get(nv_ioctl_rm_api_version_t::versionString.at()..).unwrap_or_default()
}

/// Returns whether the driver accepts a string: all of it up to its end is the same or, if that is
/// asked for, all up to the first point.
fn is_accepted(command: u32, asked: &[u8], own: &[u8]) -> bool {
    for (asked, own) in asked.iter().zip(own) {
        if asked != own {
            return false;
        }
        if *asked == 0 || command == RELAXED && *asked == b'.' {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_compared_as_the_driver_does() {
        let padded = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(64, 0);
            bytes
        };
        let own = padded("580.159.04");
        for (command, asked, expected) in [
            (0, "580.159.04", true),
            (0, "580.159.03", false),
            (0, "580.159.041", false),
            (0, "580.159", false),
            (0, "", false),
            (RELAXED, "580.1", true),
            (RELAXED, "580", false),
            (RELAXED, "570.159.04", false),
            // What is no command is a strict one.
            (9, "580.159.04", true),
            (9, "580.1", false),
        ] {
            assert_eq!(is_accepted(command, &padded(asked), &own), expected, "{command} {asked}");
        }
        assert!(!is_accepted(0, &[b'5'; 64], &own) && !is_accepted(0, &own[..4], &own));
    }
}
