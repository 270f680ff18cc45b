//! Leaves out of command lines and variables what should not be passed on with a report.

/// Parts of names whose values are left out.
const SECRET: &str = "token secret passw passphrase credential apikey api_key api-key access_key access-key private_key \
                      private-key auth cookie signature";
const LEFT_OUT: &str = "(left out)";

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET.split(' ').any(|part| name.contains(part))
}

/// The variables, with the values of secrets left out.
pub fn environment(variables: &[(String, String)]) -> Vec<(String, String)> {
    let shown = |(name, value): &(String, String)| {
        let value = if is_secret(name) {
            LEFT_OUT.to_owned()
        } else {
            without_password(value)
        };
        (name.clone(), value)
    };
    variables.iter().map(shown).collect()
}

/// The arguments, with values such as those of `--token=X` and `--token X` left out.
pub fn command_line(arguments: &[String]) -> Vec<String> {
    let mut follows = false;
    let shown = |argument: &String| {
        let is_option = argument.starts_with('-');
        if std::mem::take(&mut follows) && !is_option {
            return LEFT_OUT.to_owned();
        }
        match argument.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}={LEFT_OUT}"),
            Some(_) => without_password(argument),
            None => {
                follows = is_option && is_secret(argument);
                without_password(argument)
            }
        }
    };
    arguments.iter().map(shown).collect()
}

/// The text without what stands between `://` and `@`.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let host_ends = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..host_ends].rfind('@') {
        Some(at) => format!("{scheme}://{LEFT_OUT}{}", &rest[at..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        command_line(&arguments).join(" ")
    }

    #[test]
    fn secrets_are_left_out() {
        assert_eq!(
            shown(&["train.py", "--hf-token", "abc", "--lr", "3"]),
            "train.py --hf-token (left out) --lr 3"
        );
        assert_eq!(shown(&["--api-key=abc", "x"]), "--api-key=(left out) x");
        assert_eq!(shown(&["WANDB_TOKEN=abc", "x"]), "WANDB_TOKEN=(left out) x");
        assert_eq!(shown(&["s3://me:pw@host/a@b"]), "s3://(left out)@host/a@b");
        assert_eq!(shown(&["--no-auth", "--verbose"]), "--no-auth --verbose");
        assert_eq!(shown(&["a=b", "http://host/x@y"]), "a=b http://host/x@y");
        let variables = [
            ("MY_SECRET".to_owned(), "x".to_owned()),
            ("RANK".to_owned(), "3".to_owned()),
        ];
        assert_eq!(environment(&variables)[0].1, LEFT_OUT);
        assert_eq!(environment(&variables)[1].1, "3");
    }
}
