//! Name patterns of recipes: globs with captures, anchored at both ends, or regular expressions.
//!
//! | in a glob | matches |
//! |---|---|
//! | `*` | any run of characters, dots too, also none |
//! | `?` | one character |
//! | `[abc]`, `[0-9]`, `[!abc]` | one character of the class, or not of it |
//! | `{a,b,c}` | one of the alternatives, which are literal text without braces |
//! | `{name}` | one or more characters other than `.`, captured as `name` |
//! | `\x` | the character `x` itself |
//!
//! A pattern that begins with `re:` is a regular expression; it must match the whole name, and its named groups are
//! the captures.

use regex_lite::Regex;

/// Longest pattern, in bytes.
const MAX_PATTERN: usize = 2000;

/// Text captured by name, in the order of the pattern.
pub(super) type Captures = Vec<(String, String)>;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    text: String,
    regex: Regex,
    names: Vec<String>,
}

/// A piece of a glob.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(char),
    Any,
    One,
    Class { negated: bool, body: String },
    Alternatives(Vec<String>),
    Capture(String),
}

impl Pattern {
    /// Compiles a glob, or a regular expression after `re:`. The error is a sentence fragment.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!("a pattern has at most {MAX_PATTERN} bytes"));
        }
        let (body, names) = match text.strip_prefix("re:") {
            Some(expression) => (expression.to_owned(), None),
            None => {
                let pieces = parse(text)?;
                let names = capture_names(&pieces)?;
                (to_regex(&pieces), Some(names))
            }
        };
        let regex = Regex::new(&format!("^(?s:{body})$")).map_err(|e| format!("cannot be compiled: {e}"))?;
        let names =
            names.unwrap_or_else(|| regex.capture_names().flatten().map(str::to_owned).collect::<Vec<_>>());
        Ok(Self { text: text.to_owned(), regex, names })
    }

    /// The pattern as written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Names of the captures.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The captures of `name`, if the whole of it matches.
    pub(super) fn captures(&self, name: &str) -> Option<Captures> {
        let found = self.regex.captures(name)?;
        let value = |n: &String| found.name(n).map_or_else(String::new, |m| m.as_str().to_owned());
        Some(self.names.iter().map(|n| (n.clone(), value(n))).collect())
    }
}

/// A name built from literal text and captures: `blk.{n}.attn_qkv.weight`.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pieces: Vec<Piece>,
}

impl Template {
    /// Parses a template that may use the captures `names`. `{{`-style escapes do not exist; `\{` is a brace.
    pub(super) fn new(text: &str, names: &[String]) -> Result<Self, String> {
        let pieces = parse(text)?;
        for piece in &pieces {
            match piece {
                Piece::Literal(_) => {}
                Piece::Capture(name) if names.contains(name) => {}
                Piece::Capture(name) => {
                    return Err(format!("uses {{{name}}}, which the pattern does not capture"));
                }
                _ => return Err("is a name: besides literal text it may only hold captures like {n}".into()),
            }
        }
        Ok(Self { pieces })
    }

    /// The name for these captures.
    pub(super) fn fill(&self, captures: &Captures) -> String {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(c) => out.push(*c),
                Piece::Capture(name) => {
                    if let Some((_, value)) = captures.iter().find(|(n, _)| n == name) {
                        out.push_str(value);
                    }
                }
                _ => {}
            }
        }
        out
    }
}

/// Writes out the alternatives of a pattern: `a.{q,k}.w` gives `a.q.w` and `a.k.w`. Several lists give every
/// combination, the last one fastest.
pub(super) fn expand(text: &str) -> Result<Vec<String>, String> {
    if text.starts_with("re:") {
        return Err("cannot be a regular expression: the order of the parts must be plain".into());
    }
    let mut out = vec![String::new()];
    for piece in parse(text)? {
        match piece {
            Piece::Alternatives(list) => {
                out =
                    out.iter().flat_map(|head| list.iter().map(move |a| head.clone() + &escape(a))).collect();
                if out.len() > 1000 {
                    return Err("stands for more than 1000 names".into());
                }
            }
            other => {
                let text = source(&other);
                out.iter_mut().for_each(|head| head.push_str(&text));
            }
        }
    }
    Ok(out)
}

fn escape(text: &str) -> String {
    text.chars().map(|c| source(&Piece::Literal(c))).collect()
}

/// A piece as it is written.
fn source(piece: &Piece) -> String {
    match piece {
        Piece::Literal(c) if "*?[]{}\\".contains(*c) => format!("\\{c}"),
        Piece::Literal(c) => c.to_string(),
        Piece::Any => "*".into(),
        Piece::One => "?".into(),
        Piece::Class { negated, body } => format!("[{}{body}]", if *negated { "!" } else { "" }),
        Piece::Alternatives(list) => format!("{{{}}}", list.join(",")),
        Piece::Capture(name) => format!("{{{name}}}"),
    }
}

fn parse(text: &str) -> Result<Vec<Piece>, String> {
    if text.is_empty() {
        return Err("is empty".into());
    }
    let mut pieces = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        pieces.push(match c {
            '*' => Piece::Any,
            '?' => Piece::One,
            '\\' => Piece::Literal(chars.next().ok_or("ends in a backslash")?),
            '[' => {
                let mut body = until(&mut chars, ']').ok_or("has a [ without its ]")?;
                let negated = body.starts_with('!');
                if negated {
                    body.remove(0);
                }
                if body.is_empty() || body.contains(['[', '\\', '^', '&', '~']) {
                    return Err(format!("has the character class [{body}], which is empty or not plain"));
                }
                Piece::Class { negated, body }
            }
            '{' => {
                let body = until(&mut chars, '}').ok_or("has a { without its }")?;
                if body.contains('{') {
                    return Err(
                        "has a { within braces: they cannot be nested; write the alternatives out".into()
                    );
                }
                if body.contains(',') {
                    Piece::Alternatives(body.split(',').map(str::to_owned).collect())
                } else {
                    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
                    if !body.starts_with(first) || !body.chars().all(legal) {
                        return Err(format!(
                            "has {{{body}}}, neither the name of a capture nor alternatives with commas"
                        ));
                    }
                    Piece::Capture(body)
                }
            }
            ']' | '}' => return Err(format!("has a {c} that nothing opens")),
            other => Piece::Literal(other),
        });
    }
    Ok(pieces)
}

fn until(chars: &mut std::str::Chars<'_>, end: char) -> Option<String> {
    let rest = chars.as_str();
    let at = rest.find(end)?;
    *chars = rest[at + end.len_utf8()..].chars();
    Some(rest[..at].to_owned())
}

fn capture_names(pieces: &[Piece]) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for piece in pieces {
        if let Piece::Capture(name) = piece {
            if names.contains(name) {
                return Err(format!("captures {{{name}}} twice"));
            }
            names.push(name.clone());
        }
    }
    Ok(names)
}

fn to_regex(pieces: &[Piece]) -> String {
    let mut out = String::new();
    for piece in pieces {
        match piece {
            Piece::Literal(c) => out.push_str(&regex_lite::escape(c.encode_utf8(&mut [0; 4]))),
            Piece::Any => out.push_str(".*"),
            Piece::One => out.push('.'),
            Piece::Class { negated, body } => {
                out.push_str(if *negated { "[^" } else { "[" });
                out.push_str(body);
                out.push(']');
            }
            Piece::Alternatives(list) => {
                let list: Vec<String> = list.iter().map(|a| regex_lite::escape(a)).collect();
                out.push_str(&format!("(?:{})", list.join("|")));
            }
            Piece::Capture(name) => out.push_str(&format!("(?P<{name}>[^.]+)")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern).unwrap().captures(name).is_some()
    }

    #[test]
    fn globs_are_anchored_and_literal_but_for_their_signs() {
        for (pattern, yes, no) in [
            ("*", &["", "a", "a.b\nc"][..], &[][..]),
            (
                "blk.*.weight",
                &["blk.0.q.weight", "blk..weight"],
                &["xblk.0.weight", "blk.0.weight.x", "blkx0.weight"],
            ),
            ("a?c", &["abc", "a.c", "a\u{e9}c"], &["ac", "abbc"]),
            ("x.[qk].[0-9]", &["x.q.0", "x.k.9"], &["x.v.0", "x.q.a"]),
            ("x.[!qk]", &["x.v"], &["x.q", "x."]),
            ("a.{q,k_proj}.w", &["a.q.w", "a.k_proj.w"], &["a.k.w", "a.q,k_proj.w"]),
            ("blk.{n}.w", &["blk.12.w"], &["blk.1.2.w", "blk..w"]),
            (r"a\*b", &["a*b"], &["axb"]),
            ("a+b(c)|d", &["a+b(c)|d"], &["aab", "d"]),
            ("re:blk\\.(?P<n>[0-9]+)\\..*", &["blk.3.x"], &["xblk.3.x", "blk.a.x"]),
            ("re:a|bc", &["a", "bc"], &["ac", "abc"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn captures_fill_templates() {
        let p = Pattern::new("model.layers.{n}.{part}.weight").unwrap();
        let captures = p.captures("model.layers.3.q_proj.weight").unwrap();
        let t = Template::new("blk.{n}.{part}_{n}", p.names()).unwrap();
        assert_eq!(t.fill(&captures), "blk.3.q_proj_3");
        assert!(Template::new("blk.{m}", p.names()).unwrap_err().contains("{m}"));
        assert!(Template::new("blk.*", p.names()).is_err());
        let p = Pattern::new("re:l(?P<a>[0-9])(?P<b>x)?").unwrap();
        assert_eq!(p.captures("l7").unwrap(), [("a".into(), "7".into()), ("b".into(), String::new())]);
    }

    #[test]
    fn alternatives_expand_in_order() {
        assert_eq!(expand("b.{n}.{q,k,v}_proj").unwrap(), ["b.{n}.q_proj", "b.{n}.k_proj", "b.{n}.v_proj"]);
        assert_eq!(expand("{a,b}{c,d}").unwrap(), ["ac", "ad", "bc", "bd"]);
        assert_eq!(expand(r"\{x{a,b}").unwrap(), [r"\{xa", r"\{xb"]);
        assert!(expand("re:x").is_err());
    }

    #[test]
    fn broken_patterns_say_why() {
        for (pattern, why) in [
            ("", "empty"),
            ("a[", "without its ]"),
            ("a{b", "without its }"),
            ("a]", "nothing opens"),
            ("[]", "empty"),
            ("[a^]", "not plain"),
            ("{a}{a}", "twice"),
            ("{1a}", "neither"),
            ("{}", "neither"),
            ("{a,{b,c}}", "nested"),
            ("{a{n}}", "nested"),
            ("a\\", "backslash"),
            ("re:(", "compiled"),
        ] {
            let e = Pattern::new(pattern).unwrap_err();
            assert!(e.contains(why), "{pattern}: {e}");
        }
        assert!(Pattern::new(&"a".repeat(3000)).is_err());
    }
}
