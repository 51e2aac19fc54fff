//! The command line that containerd gives a shim. Its form is Go's `flag` package and fixed by
//! containerd.

use std::{ffi::OsString, path::PathBuf};

/// The task that containerd starts this process for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// `-v`: print the version.
    Version,
    /// `-info`: describe the runtime; its options are on stdin.
    Info,
    /// `start`: see that a shim serves the container, and print where.
    Start(Identity),
    /// `delete`: clean up after a shim that is gone.
    Delete {
        /// The shim to clean up after.
        identity: Identity,
        /// The container's bundle; `None`: the working directory.
        bundle: Option<PathBuf>,
    },
    /// `sweep`, egpu's own: clean up after every shim of this containerd that is gone.
    Sweep(Identity),
    /// `helper`, egpu's own: take the place of a shim's helper that has ended.
    Helper,
    /// No action: serve the Task API on the socket inherited as stdin.
    Serve {
        /// The container that the shim was first started for.
        identity: Identity,
        /// Path of the inherited socket, which is removed at the end.
        socket: PathBuf,
    },
}

/// The caller, and the container that it calls for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The container's id.
    pub id: String,
    /// containerd's namespace.
    pub namespace: String,
    /// containerd's gRPC address.
    pub address: String,
    /// Log at debug level.
    pub debug: bool,
}

impl Identity {
    /// Arguments with which this program takes the place of the shim's helper; the identity is for
    /// who looks at the list of processes.
    pub fn helper_arguments(&self) -> Vec<String> {
        ["-namespace", &self.namespace, "-id", &self.id, "-address", &self.address, "helper"].map(str::to_owned).into()
    }
}

/// A command line that was refused.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// Flags that are not as containerd passes them.
    #[error("the command line is not one that containerd gives a shim")]
    Parse(#[source] containerd_shim::Error),
    /// A flag that the action needs and that is absent.
    #[error(
        "{flag} is missing; containerd passes it to every {action} of a shim, and this program is not for use by hand"
    )]
    Missing { flag: &'static str, action: &'static str },
    /// An action that no containerd knows.
    #[error("unknown action {action:?}; accepted: start, delete, or none to serve")]
    UnknownAction {
        /// The action as given.
        action: String,
    },
}

impl Invocation {
    /// Reads the arguments after the program's name.
    pub fn parse(args: &[OsString]) -> Result<Self, ArgsError> {
        let flags = containerd_shim::parse(args).map_err(ArgsError::Parse)?;
        if flags.version {
            return Ok(Self::Version);
        }
        if flags.info {
            return Ok(Self::Info);
        }
        let action = match flags.action.as_str() {
            "start" => "start",
            "delete" => "delete",
            "sweep" => "sweep",
            "helper" => "helper",
            "" => "serve",
            other => return Err(ArgsError::UnknownAction { action: other.to_owned() }),
        };
        for (flag, value) in [("-namespace", &flags.namespace), ("-id", &flags.id)] {
            if value.is_empty() {
                return Err(ArgsError::Missing { flag, action });
            }
        }
        let identity =
            Identity { id: flags.id, namespace: flags.namespace, address: flags.address, debug: flags.debug };
        match action {
            "start" => Ok(Self::Start(identity)),
            "sweep" => Ok(Self::Sweep(identity)),
            "helper" => Ok(Self::Helper),
            "delete" => {
                Ok(Self::Delete { identity, bundle: Some(PathBuf::from(flags.bundle)).filter(|p| p.as_os_str() != "") })
            }
            _ if flags.socket.is_empty() => Err(ArgsError::Missing { flag: "-socket", action }),
            _ => Ok(Self::Serve { identity, socket: PathBuf::from(flags.socket) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Invocation, ArgsError> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Invocation::parse(&args)
    }

    fn identity() -> Identity {
        Identity { id: "c1".into(), namespace: "k8s.io".into(), address: "/run/c.sock".into(), debug: false }
    }

    #[test]
    fn the_calls_of_containerd_are_understood() {
        let common = "-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1";
        for (line, expected) in [
            ("-v".to_owned(), Invocation::Version),
            ("-info".to_owned(), Invocation::Info),
            (format!("{common} start"), Invocation::Start(identity())),
            (format!("{common} -debug start"), Invocation::Start(Identity { debug: true, ..identity() })),
            (
                format!("{common} -bundle /b/c1 delete"),
                Invocation::Delete { identity: identity(), bundle: Some("/b/c1".into()) },
            ),
            (format!("{common} delete"), Invocation::Delete { identity: identity(), bundle: None }),
            (format!("{common} sweep"), Invocation::Sweep(identity())),
            (format!("{common} helper"), Invocation::Helper),
            (format!("{common} -socket /s"), Invocation::Serve { identity: identity(), socket: "/s".into() }),
        ] {
            assert_eq!(parse(&line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        assert!(matches!(parse("-id c1 start"), Err(ArgsError::Missing { flag: "-namespace", .. })));
        assert!(matches!(parse("-namespace n start"), Err(ArgsError::Missing { flag: "-id", .. })));
        assert!(matches!(parse("-namespace n -id c1"), Err(ArgsError::Missing { flag: "-socket", .. })));
        assert!(matches!(parse("-namespace n -id c1 stop"), Err(ArgsError::UnknownAction { .. })));
        assert!(matches!(parse("-no-such-flag"), Err(ArgsError::Parse(_))));
    }
}
