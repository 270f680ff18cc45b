//! The token that a client must show.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use base::identity::effective_user;
use base::sync::lock;
use base::text::shown;
use journal::reader::plain;
use sha2::{Digest, Sha256};

use crate::say::say;

const SHORTEST: usize = 16;
const LONGEST: u64 = 4096;

/// The token of a file, which is read for each request. So a new token needs no new start.
pub struct TokenFile {
    path: PathBuf,
    latest: Mutex<Latest>,
}

struct Latest {
    token: Token,
    /// It was said that the file cannot be used any more.
    told: bool,
}

impl TokenFile {
    pub fn read(path: &Path) -> Result<TokenFile, String> {
        let token = Token::read(path)?;
        Ok(TokenFile {
            path: path.to_owned(),
            latest: Mutex::new(Latest { token, told: false }),
        })
    }

    /// Whether the value of an `Authorization` header has the token that the file has now. If the file cannot be used any
    /// more, the last token holds.
    pub fn allows(&self, authorization: Option<&[u8]>) -> bool {
        let mut latest = lock(&self.latest);
        match Token::read(&self.path) {
            Ok(token) => *latest = Latest { token, told: false },
            Err(why) => {
                if !std::mem::replace(&mut latest.told, true) {
                    say!("{why}; the token that was read before still holds");
                }
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
        Token::read_from(path).map_err(|problem| format!("--token-file {}: {problem}", shown(path)))
    }

    fn read_from(path: &Path) -> Result<Token, String> {
        let unread = |problem: io::Error| format!("cannot be read: {problem}");
        let file = plain::open(path).map_err(unread)?.ok_or("no plain file")?;
        let metadata = file.metadata().map_err(unread)?;
        // SAFETY: getegid has no preconditions.
        let (user, group) = (effective_user(), unsafe { libc::getegid() });
        if ![0, user].contains(&metadata.uid()) {
            return Err("it belongs to another user".to_owned());
        }
        // Kubernetes mounts a secret so for a process that is not root: it is root's, and the group of the process reads it.
        let is_of_group = user != 0 && metadata.uid() == 0 && metadata.gid() == group;
        let forbidden = if is_of_group { 0o037 } else { 0o077 };
        if metadata.mode() & forbidden != 0 {
            return Err("others may read or write it; chmod 600 the file".to_owned());
        }
        let mut text = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut text).map_err(unread)?;
        let token = text.trim_ascii();
        if text.len() as u64 > LONGEST || token.len() < SHORTEST {
            return Err(format!(
                "a token has {SHORTEST} to {LONGEST} characters; openssl rand -hex 32 makes one"
            ));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err("a token has ASCII characters without spaces".to_owned());
        }
        Ok(Token(Sha256::digest(token).into()))
    }

    /// Whether the value of an `Authorization` header is this token as a bearer token.
    fn allows(&self, authorization: Option<&[u8]>) -> bool {
        let split = authorization.and_then(|value| value.split_at_checked("Bearer ".len()));
        split.is_some_and(|(scheme, shown)| scheme.eq_ignore_ascii_case(b"bearer ") && self.is(shown.trim_ascii()))
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
