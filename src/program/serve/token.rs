//! The token that a client must show.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use base::sync::lock;
use base::text::shown;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest, Sha256};

use crate::say::say;

const SHORTEST: usize = 16;
const LONGEST: u64 = 4096;

/// The token of a file. A file that changes is read again, so a new token needs no new start.
pub struct TokenFile {
    path: PathBuf,
    latest: Mutex<Latest>,
}

struct Latest {
    token: Token,
    /// The file that was read last, or that could not be used.
    version: Option<Version>,
}

/// What changes with the text of a file.
#[derive(PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Version {
    /// `None` if there is no such file.
    fn of(path: &Path) -> Option<Version> {
        let metadata = path.metadata().ok()?;
        Some(Version {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl TokenFile {
    pub fn read(path: &Path) -> Result<TokenFile, String> {
        let version = Version::of(path);
        let token = Token::read(path)?;
        Ok(TokenFile {
            path: path.to_owned(),
            latest: Mutex::new(Latest { token, version }),
        })
    }

    /// Whether the value of an `Authorization` header has the token that the file has now. If the file cannot be used any
    /// more, the last token holds.
    pub fn allows(&self, authorization: Option<&[u8]>) -> bool {
        let mut latest = lock(&self.latest);
        let version = Version::of(&self.path);
        if version != latest.version {
            latest.version = version;
            match Token::read(&self.path) {
                Ok(token) => latest.token = token,
                Err(why) => say!("{why}; the token that was read before still holds"),
            }
        }
        latest.token.allows(authorization)
    }
}

/// The digest of a token. The token itself is not kept.
struct Token([u8; 32]);

impl Token {
    /// Reads the token from a file, which its owner alone may read or write. White space at the ends does not count.
    fn read(path: &Path) -> Result<Token, String> {
        let refused = |why: &str| format!("--token-file {}: {why}", shown(path));
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = opened.map_err(|error| refused(&format!("cannot be read: {error}")))?;
        let metadata = file.metadata().map_err(|error| refused(&error.to_string()))?;
        if !metadata.is_file() {
            return Err(refused("no plain file"));
        }
        // SAFETY: geteuid has no preconditions.
        if ![0, unsafe { libc::geteuid() }].contains(&metadata.uid()) {
            return Err(refused("it belongs to another user"));
        }
        // Kubernetes mounts a secret so for a process that is not root: it is root's, and the group of the process reads it.
        // SAFETY: geteuid and getegid have no preconditions.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let is_of_group = user != 0 && metadata.uid() == 0 && metadata.gid() == group;
        let forbidden = if is_of_group { 0o037 } else { 0o077 };
        if metadata.mode() & forbidden != 0 {
            return Err(refused("others may read or write it; chmod 600 the file"));
        }
        let mut text = Vec::new();
        (file.take(LONGEST + 1).read_to_end(&mut text)).map_err(|error| refused(&error.to_string()))?;
        let token = text.trim_ascii();
        if text.len() as u64 > LONGEST || token.len() < SHORTEST {
            return Err(refused(&format!(
                "a token has {SHORTEST} to {LONGEST} characters; openssl rand -hex 32 makes one"
            )));
        }
        match token.iter().all(u8::is_ascii_graphic) {
            true => Ok(Token(Sha256::digest(token).into())),
            false => Err(refused("a token has ASCII characters without spaces")),
        }
    }

    /// Whether the value of an `Authorization` header has this token: as a bearer token, or as the password of any user, which
    /// is how a browser asks for it.
    fn allows(&self, authorization: Option<&[u8]>) -> bool {
        let Some((scheme, shown)) = authorization.and_then(|value| {
            let blank = value.iter().position(|&byte| byte == b' ')?;
            Some((&value[..blank], value[blank..].trim_ascii()))
        }) else {
            return false;
        };
        if scheme.eq_ignore_ascii_case(b"bearer") {
            return self.is(shown);
        }
        let Some(pair) = BASE64_STANDARD
            .decode(shown)
            .ok()
            .filter(|_| scheme.eq_ignore_ascii_case(b"basic"))
        else {
            return false;
        };
        // RFC 7617: the name of a user has no colon.
        let colon = pair.iter().position(|&byte| byte == b':');
        colon.is_some_and(|colon| self.is(&pair[colon + 1..]))
    }

    /// The time does not tell how much of what is shown is right: digests are compared, and all bytes of them.
    fn is(&self, shown: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(shown).into();
        let different = self
            .0
            .iter()
            .zip(digest)
            .fold(0, |sum, (one, other)| sum | (one ^ other));
        std::hint::black_box(different) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_allowed() {
        let token = Token(Sha256::digest(b"0123456789abcdef").into());
        assert!(token.allows(Some(b"Bearer 0123456789abcdef")));
        assert!(token.allows(Some(b"bearer 0123456789abcdef")));
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        assert!(token.allows(Some(basic("anybody:0123456789abcdef").as_bytes())));
        for wrong in ["0123456789abcdef", "0123456789abcdef:", "a:b:0123456789abcdef", ""] {
            assert!(!token.allows(Some(basic(wrong).as_bytes())), "{wrong}");
        }
        for wrong in [
            &b"Bearer 0123456789abcde"[..],
            b"Bearer 0123456789abcdef0",
            b"Bearer ",
            b"Basic 0123456789abcdef",
            b"0123456789abcdef",
            b"",
        ] {
            assert!(!token.allows(Some(wrong)), "{}", String::from_utf8_lossy(wrong));
        }
        assert!(!token.allows(None));
    }
}
