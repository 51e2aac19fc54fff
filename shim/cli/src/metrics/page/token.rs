//! Token without which the page is nobody's.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Bytes of the shortest token.
const LEAST: usize = 16;
/// Permissions of anybody but the owner and the group.
const OTHERS: u32 = 0o007;

/// A token, as browsers and programs send it.
#[derive(Debug)]
pub(crate) struct Token {
    /// `Bearer TOKEN`, and `Basic` with any user's name before it.
    token: String,
}

/// Reason for which a file has no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error("anybody may read it (mode {mode:o}); `chmod 600` it")]
    Readable { mode: u32 },
    #[error("{LEAST} or more printable ASCII characters on one line are accepted; `openssl rand -hex 32` prints some")]
    Unfit,
}

impl Token {
    /// Reads it from the only line of a file that others may not read.
    pub(in crate::metrics) fn read(path: &Path) -> Result<Self, TokenError> {
        let mode = fs::metadata(path).map_err(TokenError::Read)?.permissions().mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(TokenError::Readable { mode });
        }
        let text = fs::read_to_string(path).map_err(TokenError::Read)?;
        let token = text.trim_end();
        let is_fit = token.len() >= LEAST && token.bytes().all(|byte| byte.is_ascii_graphic());
        is_fit.then(|| Self { token: token.to_owned() }).ok_or(TokenError::Unfit)
    }

    /// Returns whether the value of an `Authorization` header has the token: after `Bearer`, or as
    /// the password after `Basic`, which a browser asks its user for.
    pub(in crate::metrics) fn is_in(&self, authorization: &[u8]) -> bool {
        let text = String::from_utf8_lossy(authorization);
        let Some((scheme, value)) = text.split_once(' ') else { return false };
        let given = if scheme.eq_ignore_ascii_case("bearer") {
            value.as_bytes().to_vec()
        } else if scheme.eq_ignore_ascii_case("basic") {
            let Ok(decoded) = STANDARD.decode(value) else { return false };
            decoded.splitn(2, |byte| *byte == b':').nth(1).map(<[u8]>::to_vec).unwrap_or_default()
        } else {
            return false;
        };
        is_same(&given, self.token.as_bytes())
    }
}

/// Compares in a time that says nothing of where the first difference is.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |different, (one, other)| different | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_nobody_elses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert!(matches!(Token::read(&path), Err(TokenError::Read(_))));
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        assert!(matches!(write("0123456789abcdef\n", 0o644), Err(TokenError::Readable { mode: 0o644 })));
        for unfit in ["", "short\n", "0123456789abcdef\n0123456789abcdef\n", "0123456789abcdeé"] {
            assert!(matches!(write(unfit, 0o600), Err(TokenError::Unfit)), "{unfit:?}");
        }
        let token = write("0123456789abcdef\n", 0o640).unwrap();
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        for right in [
            "Bearer 0123456789abcdef",
            "bearer 0123456789abcdef",
            &basic("anybody:0123456789abcdef"),
            &basic(":0123456789abcdef"),
        ] {
            assert!(token.is_in(right.as_bytes()), "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdee",
            "Bearer 0123456789abcdef0",
            "0123456789abcdef",
            &basic("0123456789abcdef"),
            "Basic ?",
            "Digest 0123456789abcdef",
        ] {
            assert!(!token.is_in(wrong.as_bytes()), "{wrong}");
        }
    }
}
