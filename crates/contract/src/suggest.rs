//! What somebody may have meant who wrote a name that does not exist.

use crate::run::snake;

/// The known name that is nearest to a word, if one is near: at most two slips away, or a longer form of it.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const SLIPS: usize = 2;
    const STEM: usize = 4;
    let length = word.chars().count();
    let far = |name: &str| {
        if word.len() >= STEM && name.starts_with(word) {
            return SLIPS;
        }
        // As many slips as characters are missing, at least. The distance itself takes time and memory for each pair of
        // characters, and a stranger may send a word of megabytes.
        let missing = length.abs_diff(name.chars().count());
        if missing > SLIPS { missing } else { strsim::damerau_levenshtein(word, name) }
    };
    // A name of two letters is two slips away from any other.
    let near = known.into_iter().map(|name| (far(name), name)).filter(|(far, name)| *far <= SLIPS.min(name.len() / 2));
    near.min().map(|(_, name)| name)
}

/// ``; did you mean `NAME`?``, or nothing.
pub fn meant(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// What serde says about a field that a type does not have, for people: the name, and a known one that is near. `None`
/// if it says something else. `more` are names that serde does not know of.
pub fn unknown_field(message: &str, more: &[&str]) -> Option<String> {
    let (_, rest) = message.split_once("unknown field `")?;
    let mut quoted = rest.split('`').step_by(2);
    let name = quoted.next()?;
    // camelCase is read where it always was, but nobody is led to it.
    let plain = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let near = nearest(&snake(name), quoted.filter(plain).chain(more.iter().copied()));
    Some(format!("unknown field `{name}`{}", meant(near)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_if_it_is_near() {
        let known = ["queue", "delay_ms", "deadline", "timeout_ms", "timeout_seconds"];
        for (word, near) in [
            ("delay_mss", Some("delay_ms")),
            ("delay", Some("delay_ms")),
            ("qeue", Some("queue")),
            ("timeout", Some("timeout_ms")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known), near, "{word}");
        }
    }

    /// Without a bound this would take more memory than a machine has.
    #[test]
    fn a_word_of_megabytes_has_no_nearest_name() {
        let word = "é".repeat(16 << 20);
        let known: Vec<String> = (0..1_000).map(|n| format!("queue-{n}")).collect();
        assert_eq!(nearest(&word, known.iter().map(String::as_str)), None);
    }

    #[test]
    fn what_serde_says_is_said_for_people() {
        let said = "unknown field `fator`, expected one of `factor`, `maxBackoffMs` at line 1 column 7";
        assert_eq!(unknown_field(said, &[]).as_deref(), Some("unknown field `fator`; did you mean `factor`?"));
        assert_eq!(unknown_field("unknown field `x`, there are no fields", &[]).as_deref(), Some("unknown field `x`"));
        assert_eq!(unknown_field("missing field `b`", &[]), None);
    }
}
