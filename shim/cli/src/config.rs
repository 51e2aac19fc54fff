//! The configuration: what the commands work with, and `egpu config check`.

use std::path::Path;

use runtime_config::Config;

use super::error::CliError;

/// Reads the node's file.
pub(super) fn load() -> Result<Config, CliError> {
    Config::load(None).map_err(CliError::Config)
}

/// Checks the file.
pub(super) fn check(file: Option<&Path>) -> Result<String, CliError> {
    Config::load(file).map_err(CliError::Config)?;
    let path = file.map_or_else(Config::path, Path::to_owned);
    // Only the default path may be missing.
    let text = if path.exists() { "is valid" } else { "does not exist: the defaults apply" };
    Ok(format!("{} {text}\n", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_file_is_right_or_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        std::fs::write(&file, "max_inst = 4\n").unwrap();
        assert_eq!(check(Some(&file)).unwrap(), format!("{} is valid\n", file.display()));
        std::fs::write(&file, "\nmax_ints = 4\n").unwrap();
        let error = check(Some(&file)).unwrap_err();
        assert_eq!(error.exit(), Exit::Config);
        let text = base::error_chain(&error);
        assert!(text.contains("line 2: there is no key `max_ints`, did you mean `max_inst`?"), "{text}");
        assert!(check(Some(&directory.path().join("missing"))).is_err());
    }
}
