//! The runtime options of a container, whichever of containerd's messages carries them.
//!
//! Which one arrives depends on the name under which the runtime is configured:
//! `containerd.runc.v1.Options` for `io.containerd.runc.v2`, else `runtimeoptions.v1.Options`,
//! whose body is TOML. Clients of containerd 1.x send `containerd.linux.runc.CreateOptions` to a
//! runtime of another name, as `ctr run --uidmap` does. So the message is recognized by its type.

use std::path::PathBuf;

use containerd_shim::protos::shim::oci::Options as RuncOptions;
use protobuf::{CodedInputStream, Message, well_known_types::any::Any};

/// The runtime options that egpu uses. The defaults are those of an absent message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// `NoPivotRoot`: move the root mount instead of pivoting (for a ramfs root).
    pub no_pivot_root: bool,
    /// `NoNewKeyring`: keep the session keyring of the shim.
    pub no_new_keyring: bool,
    /// `ShimCgroup`: where the shim itself goes.
    pub shim_cgroup: Option<String>,
    /// `IoUid` and `IoGid`: who owns the streams; `None` when both are 0, the value of an absent
    /// field.
    pub io_owner: Option<(u32, u32)>,
    /// `Root`: where libcontainer's state goes instead of below egpu's own directory.
    pub root: Option<PathBuf>,
    /// `SystemdCgroup`: cgroups through systemd.
    pub systemd_cgroup: bool,
}

/// Options, and what in them had no effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedOptions {
    /// The options to use.
    pub options: RuntimeOptions,
    /// Options that were set and are ignored, for the log.
    pub warnings: Vec<String>,
}

/// Options that were refused.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// A message of an unknown type.
    #[error(
        "runtime options of type {type_url:?} are not understood; accepted are containerd.runc.v1.Options, \
         runtimeoptions.v1.Options and containerd.linux.runc.CreateOptions"
    )]
    UnknownType {
        /// The type in the request.
        type_url: String,
    },
    /// Bytes that are not the message that the type names.
    #[error("the runtime options are not a valid {type_name}")]
    Decode {
        /// The message.
        type_name: &'static str,
        #[source]
        source: protobuf::Error,
    },
    /// `config_path` cannot be read.
    #[error("cannot read {}, which the runtime options name as config_path", path.display())]
    ReadConfig {
        /// The file.
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The body is not TOML.
    #[error("the runtime options' TOML is malformed")]
    Toml(#[source] Box<toml::de::Error>),
    /// A key has a value of another type.
    #[error("runtime option {key} = {value} is not valid; {expected}")]
    Value {
        /// The key in the TOML.
        key: String,
        /// The value in the TOML.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
}

const RUNC: &str = "containerd.runc.v1.Options";
const GENERIC: &str = "runtimeoptions.v1.Options";
const LINUX: &str = "containerd.linux.runc.CreateOptions";

impl ParsedOptions {
    /// Reads the options of a request; an absent or untyped message means the defaults.
    pub fn from_any(any: Option<&Any>) -> Result<Self, OptionsError> {
        let Some(any) = any.filter(|any| !any.type_url.is_empty()) else { return Ok(Self::default()) };
        // containerd writes the bare name, protobuf's own packing puts a host in front.
        match any.type_url.rsplit('/').next() {
            Some(RUNC) => {
                let message = RuncOptions::parse_from_bytes(&any.value)
                    .map_err(|source| OptionsError::Decode { type_name: RUNC, source })?;
                Ok(Self::from_runc(&message))
            }
            // The package was renamed between containerd 1.x and 2.x.
            Some(GENERIC | "runtimeoptions.Options") => {
                let generic = GenericOptions::decode(&any.value)
                    .map_err(|source| OptionsError::Decode { type_name: GENERIC, source })?;
                Self::from_toml(&generic.toml()?)
            }
            Some(LINUX) => linux_options(&any.value)
                .map(|options| Self { options, warnings: vec![] })
                .map_err(|source| OptionsError::Decode { type_name: LINUX, source }),
            _ => Err(OptionsError::UnknownType { type_url: any.type_url.clone() }),
        }
    }

    /// The first message among `extensions` that holds runtime options; what else is there is for
    /// others.
    pub fn from_extensions(extensions: &[Any]) -> Result<Self, OptionsError> {
        for any in extensions {
            match Self::from_any(Some(any)) {
                Err(OptionsError::UnknownType { .. }) => {}
                result => return result,
            }
        }
        Ok(Self::default())
    }

    fn from_runc(message: &RuncOptions) -> Self {
        let mut parsed = Self {
            options: RuntimeOptions {
                no_pivot_root: message.no_pivot_root,
                no_new_keyring: message.no_new_keyring,
                shim_cgroup: non_empty(&message.shim_cgroup),
                io_owner: io_owner(message.io_uid, message.io_gid),
                root: non_empty(&message.root).map(PathBuf::from),
                systemd_cgroup: message.systemd_cgroup,
            },
            warnings: vec![],
        };
        for (key, value) in [
            ("BinaryName", &message.binary_name),
            ("CriuImagePath", &message.criu_image_path),
            ("CriuWorkPath", &message.criu_work_path),
            ("TaskApiAddress", &message.task_api_address),
        ] {
            if !value.is_empty() {
                parsed.warnings.push(ignored(key, value));
            }
        }
        parsed
    }

    /// The options table of containerd's configuration file. Its keys are those of the runc message
    /// in Go's spelling.
    fn from_toml(text: &str) -> Result<Self, OptionsError> {
        let table: toml::Table = toml::from_str(text).map_err(|e| OptionsError::Toml(Box::new(e)))?;
        let mut parsed = Self::default();
        let (mut uid, mut gid) = (0, 0);
        for (key, value) in &table {
            let options = &mut parsed.options;
            match key.as_str() {
                "NoPivotRoot" => options.no_pivot_root = boolean(key, value)?,
                "NoNewKeyring" => options.no_new_keyring = boolean(key, value)?,
                "ShimCgroup" => options.shim_cgroup = non_empty(text_of(key, value)?),
                "IoUid" => uid = id(key, value)?,
                "IoGid" => gid = id(key, value)?,
                "Root" => options.root = non_empty(text_of(key, value)?).map(PathBuf::from),
                "SystemdCgroup" => options.systemd_cgroup = boolean(key, value)?,
                // What containerd's own default configuration writes out without a meaning for this
                // runtime.
                _ if value.as_str() == Some("") => {}
                _ => parsed.warnings.push(ignored(key, value)),
            }
        }
        parsed.options.io_owner = io_owner(uid, gid);
        Ok(parsed)
    }
}

fn ignored(key: &str, value: impl std::fmt::Display) -> String {
    match key {
        "BinaryName" => format!("runtime option BinaryName = {value} is ignored: egpu runs containers itself"),
        _ => format!("runtime option {key} = {value} has no meaning for egpu and is ignored"),
    }
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn io_owner(uid: u32, gid: u32) -> Option<(u32, u32)> {
    (uid != 0 || gid != 0).then_some((uid, gid))
}

fn boolean(key: &str, value: &toml::Value) -> Result<bool, OptionsError> {
    value.as_bool().ok_or_else(|| wrong(key, value, "it must be true or false"))
}

fn text_of<'v>(key: &str, value: &'v toml::Value) -> Result<&'v str, OptionsError> {
    value.as_str().ok_or_else(|| wrong(key, value, "it must be a string"))
}

fn id(key: &str, value: &toml::Value) -> Result<u32, OptionsError> {
    let id = value.as_integer().and_then(|number| u32::try_from(number).ok());
    id.ok_or_else(|| wrong(key, value, "it must be a user or group id, 0 to 4294967295"))
}

fn wrong(key: &str, value: &toml::Value, expected: &'static str) -> OptionsError {
    OptionsError::Value { key: key.to_owned(), value: value.to_string(), expected }
}

/// `runtimeoptions.v1.Options` (containerd, api/types/runtimeoptions/v1/api.proto), for which no
/// crate has a type.
#[derive(Debug, Default)]
struct GenericOptions {
    config_path: String,
    config_body: Vec<u8>,
}

impl GenericOptions {
    /// Fields: 1 `type_url`, 2 `config_path`, 3 `config_body`.
    fn decode(bytes: &[u8]) -> protobuf::Result<Self> {
        let mut options = Self::default();
        let mut input = CodedInputStream::from_bytes(bytes);
        while let Some(tag) = input.read_raw_tag_or_eof()? {
            match tag {
                TAG_CONFIG_PATH => options.config_path = input.read_string()?,
                TAG_CONFIG_BODY => options.config_body = input.read_bytes()?,
                other => input.skip_field(wire_type(other)?)?,
            }
        }
        Ok(options)
    }

    fn toml(&self) -> Result<String, OptionsError> {
        if self.config_body.is_empty() && !self.config_path.is_empty() {
            let path = PathBuf::from(&self.config_path);
            return std::fs::read_to_string(&path).map_err(|source| OptionsError::ReadConfig { path, source });
        }
        Ok(String::from_utf8_lossy(&self.config_body).into_owned())
    }
}

/// Reads `containerd.linux.runc.CreateOptions` (containerd 1.x,
/// runtime/linux/runctypes/runc.proto), for which no crate has a type. Fields: 1 `no_pivot_root`, 8
/// `no_new_keyring`, 9 `shim_cgroup`, 10 `io_uid`, 11 `io_gid`; the others are for checkpoints.
fn linux_options(bytes: &[u8]) -> protobuf::Result<RuntimeOptions> {
    let mut options = RuntimeOptions::default();
    let (mut uid, mut gid) = (0, 0);
    let mut input = CodedInputStream::from_bytes(bytes);
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        match tag {
            TAG_NO_PIVOT_ROOT => options.no_pivot_root = input.read_bool()?,
            TAG_NO_NEW_KEYRING => options.no_new_keyring = input.read_bool()?,
            TAG_SHIM_CGROUP => options.shim_cgroup = non_empty(&input.read_string()?),
            TAG_IO_UID => uid = input.read_uint32()?,
            TAG_IO_GID => gid = input.read_uint32()?,
            other => input.skip_field(wire_type(other)?)?,
        }
    }
    options.io_owner = io_owner(uid, gid);
    Ok(options)
}

/// Field number shifted by three, wire type in the low bits: 0 (a number) or 2 (length-delimited).
const TAG_CONFIG_PATH: u32 = 2 << 3 | 2;
const TAG_CONFIG_BODY: u32 = 3 << 3 | 2;
const TAG_NO_PIVOT_ROOT: u32 = 1 << 3;
const TAG_NO_NEW_KEYRING: u32 = 8 << 3;
const TAG_SHIM_CGROUP: u32 = 9 << 3 | 2;
const TAG_IO_UID: u32 = 10 << 3;
const TAG_IO_GID: u32 = 11 << 3;

fn wire_type(tag: u32) -> protobuf::Result<protobuf::rt::WireType> {
    protobuf::rt::WireType::new(tag & 7).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runc(options: &RuncOptions) -> Any {
        Any { type_url: RUNC.into(), value: options.write_to_bytes().unwrap(), ..Default::default() }
    }

    /// Returns options as containerd's CRI plugin sends them.
    fn generic(type_url: &str, path: &str, body: &str) -> Any {
        let mut value = vec![];
        let mut output = protobuf::CodedOutputStream::vec(&mut value);
        for (field, text) in [(1, "some.type.Url"), (2, path), (3, body)] {
            output.write_string(field, text).unwrap();
        }
        output.flush().unwrap();
        drop(output);
        Any { type_url: type_url.into(), value, ..Default::default() }
    }

    fn everything() -> RuntimeOptions {
        RuntimeOptions {
            no_pivot_root: true,
            no_new_keyring: true,
            shim_cgroup: Some("/shims".into()),
            io_owner: Some((1000, 0)),
            root: Some("/run/other".into()),
            systemd_cgroup: true,
        }
    }

    #[test]
    fn absent_options_are_the_defaults() {
        assert_eq!(ParsedOptions::from_any(None).unwrap(), ParsedOptions::default());
        assert_eq!(ParsedOptions::from_any(Some(&Any::default())).unwrap(), ParsedOptions::default());
        assert_eq!(ParsedOptions::from_any(Some(&runc(&RuncOptions::default()))).unwrap(), ParsedOptions::default());
    }

    #[test]
    fn runc_options_by_bare_and_by_qualified_name() {
        let mut any = runc(&RuncOptions {
            no_pivot_root: true,
            no_new_keyring: true,
            shim_cgroup: "/shims".into(),
            io_uid: 1000,
            root: "/run/other".into(),
            systemd_cgroup: true,
            binary_name: "crun".into(),
            ..Default::default()
        });
        for type_url in [RUNC.to_owned(), format!("type.googleapis.com/{RUNC}")] {
            any.type_url = type_url;
            let parsed = ParsedOptions::from_any(Some(&any)).unwrap();
            assert_eq!(parsed.options, everything());
            assert_eq!(parsed.warnings.len(), 1, "{:?}", parsed.warnings);
        }
    }

    #[test]
    fn toml_of_containerds_configuration() {
        let body = "BinaryName = \"\"\nSystemdCgroup = true\nNoPivotRoot = true\nNoNewKeyring = true\n\
                    ShimCgroup = \"/shims\"\nRoot = \"/run/other\"\nIoUid = 1000\nIoGid = 0\n";
        for type_url in [GENERIC, "type.googleapis.com/runtimeoptions.v1.Options"] {
            let parsed = ParsedOptions::from_any(Some(&generic(type_url, "", body))).unwrap();
            assert_eq!(parsed, ParsedOptions { options: everything(), warnings: vec![] });
        }
    }

    #[test]
    fn options_of_clients_of_containerd_1() {
        // io_uid 100000; then everything, among the fields for checkpoints.
        let decode = |value: &[u8]| {
            let any = Any { type_url: LINUX.into(), value: value.to_vec(), ..Default::default() };
            ParsedOptions::from_any(Some(&any)).map(|parsed| parsed.options)
        };
        let mapped = RuntimeOptions { io_owner: Some((100_000, 0)), ..RuntimeOptions::default() };
        assert_eq!(decode(&[0x50, 0xa0, 0x8d, 0x06]).unwrap(), mapped);
        let all = b"\x08\x01\x10\x01\x32\x03net\x40\x01\x4a\x06/shims\x50\xe8\x07\x58\x00\x6a\x01/";
        let expected = RuntimeOptions { root: None, systemd_cgroup: false, ..everything() };
        assert_eq!(decode(all).unwrap(), expected);
        assert_eq!(decode(&[]).unwrap(), RuntimeOptions::default());
        assert!(matches!(decode(&[0x50]), Err(OptionsError::Decode { .. })));
    }

    #[test]
    fn unknown_keys_are_reported() {
        let parsed = ParsedOptions::from_any(Some(&generic(GENERIC, "", "Speed = 3\nBinaryName = \"runc\""))).unwrap();
        assert_eq!(parsed.options, RuntimeOptions::default());
        assert_eq!(parsed.warnings.len(), 2);
        assert!(parsed.warnings.iter().any(|warning| warning.contains("Speed = 3")));
    }

    #[test]
    fn the_file_is_read_when_there_is_no_body() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "SystemdCgroup = true").unwrap();
        let any = generic(GENERIC, file.path().to_str().unwrap(), "");
        assert!(ParsedOptions::from_any(Some(&any)).unwrap().options.systemd_cgroup);
        let missing = generic(GENERIC, "/no/such/file", "");
        assert!(matches!(ParsedOptions::from_any(Some(&missing)), Err(OptionsError::ReadConfig { .. })));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let unknown = Any { type_url: "a/b.Options".into(), ..Default::default() };
        assert!(matches!(ParsedOptions::from_any(Some(&unknown)), Err(OptionsError::UnknownType { .. })));
        for body in ["SystemdCgroup = \"yes\"", "IoUid = -1", "Root = 3", "NoPivotRoot = 0"] {
            let result = ParsedOptions::from_any(Some(&generic(GENERIC, "", body)));
            assert!(matches!(result, Err(OptionsError::Value { .. })), "{body}: {result:?}");
        }
        assert!(matches!(ParsedOptions::from_any(Some(&generic(GENERIC, "", "Root = "))), Err(OptionsError::Toml(_))));
    }

    #[test]
    fn other_extensions_are_passed_over() {
        let other = Any { type_url: "containerd.io/cri.v1.PodSandboxConfig".into(), ..Default::default() };
        let options = runc(&RuncOptions { systemd_cgroup: true, ..Default::default() });
        assert!(ParsedOptions::from_extensions(&[other.clone(), options]).unwrap().options.systemd_cgroup);
        assert_eq!(ParsedOptions::from_extensions(&[other]).unwrap(), ParsedOptions::default());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(value: Vec<u8>, kind in 0..3_usize) {
            let any = Any { type_url: [RUNC, GENERIC, LINUX][kind].into(), value, ..Default::default() };
            // config_path may name any file of this machine; reading it is what is asked for.
            let _ = ParsedOptions::from_any(Some(&any));
        }
    }
}
