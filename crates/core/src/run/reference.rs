//! Outputs of other tasks, named in a payload: `{"$from":"extract","path":"/rows"}`.
//!
//! A payload is text and stays text: everything but the references keeps every digit and every space. One pass finds the
//! references.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use serde_json::value::RawValue;

use crate::limits;

/// An object of a payload with exactly `$from`, or `$from` and `path`, both strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Its place in the payload.
    span: Range<usize>,
    /// The task whose output it names.
    pub key: String,
    /// A JSON pointer into the output; without one the whole output is meant.
    pub path: Option<String>,
}

impl Reference {
    /// A path is empty or begins with `/`; every `~` is followed by `0` or `1`.
    pub fn has_good_path(&self) -> bool {
        let Some(path) = &self.path else { return true };
        let escapes = path.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
        (path.is_empty() || path.starts_with('/')) && escapes
    }

    /// How many steps its path has.
    pub fn steps(&self) -> usize {
        self.path.as_deref().map_or(0, |path| path.bytes().filter(|byte| *byte == b'/').count())
    }
}

/// The references of a payload, in their order.
pub fn find(payload: &str) -> Vec<Reference> {
    let mut found = Vec::new();
    if !payload.contains("from") {
        return found;
    }
    let bytes = payload.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at),
            b'{' => match reference(payload, at) {
                Some(reference) => {
                    at = reference.span.end;
                    found.push(reference);
                }
                None => at += 1,
            },
            _ => at += 1,
        }
    }
    found
}

/// The end of the string that begins at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(byte) = bytes.get(end) {
        match byte {
            b'\\' => end += 2,
            b'"' => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

/// The reference that begins at `at`, if it is one.
fn reference(text: &str, at: usize) -> Option<Reference> {
    let (mut key, mut path) = (None, None);
    let mut reader = Reader { text, at: at + 1 };
    loop {
        let slot = match &*reader.string()? {
            "$from" => &mut key,
            "path" => &mut path,
            _ => return None,
        };
        reader.expect(b':')?;
        if slot.replace(reader.string()?.into_owned()).is_some() {
            return None;
        }
        match reader.next()? {
            b',' => {}
            b'}' => return Some(Reference { span: at..reader.at, key: key?, path }),
            _ => return None,
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next byte that is not white space.
    fn next(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.as_bytes().get(self.at)?;
            self.at += 1;
            if !byte.is_ascii_whitespace() {
                return Some(byte);
            }
        }
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.next()? == wanted).then_some(())
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        self.expect(b'"')?;
        let start = self.at - 1;
        self.at = string_end(self.text.as_bytes(), start);
        let quoted = self.text.get(start..self.at)?;
        let inside = quoted.get(1..quoted.len().checked_sub(1)?)?;
        if inside.contains('\\') {
            serde_json::from_str(quoted).ok().map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(inside))
        }
    }
}

/// The payload with its references replaced. `output` returns the output of a task, `None` if it ended without one. The
/// error is a message for people.
pub fn fill<'o>(
    payload: &str,
    parts: &mut Parts<'o>,
    budget: &mut Budget,
    output: impl Fn(&str) -> Option<&'o str>,
) -> Result<String, String> {
    let mut filled = String::with_capacity(payload.len());
    let mut behind = 0;
    for Reference { span, key, path } in find(payload) {
        let path = path.unwrap_or_default();
        let part = parts.part(output(&key).unwrap_or("null"), &path, budget)?;
        let part =
            part.ok_or_else(|| format!("the output of {key} has nothing at {path}, which the payload asks for"))?;
        filled.push_str(&payload[behind..span.start]);
        filled.push_str(part);
        behind = span.end;
        if filled.len() > limits::PAYLOAD_BYTES {
            break;
        }
    }
    filled.push_str(&payload[behind..]);
    if filled.len() > limits::PAYLOAD_BYTES {
        let limit = limits::PAYLOAD_BYTES;
        return Err(format!("with the outputs that it asks for, the payload has more than {limit} bytes"));
    }
    budget.fill = budget.fill.checked_sub(filled.len()).ok_or_else(|| {
        let limit = limits::FILLED_BYTES >> 20;
        format!(
            "the payloads of its run that are filled in at once have more than {limit} MiB together: pass on the location of the data, not the data"
        )
    })?;
    Ok(filled)
}

/// How much one run may fill at a time: all of it is written in one transaction.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Bytes of outputs that are looked through.
    scan: usize,
    /// Bytes of payloads.
    fill: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { scan: limits::SCANNED_BYTES, fill: limits::FILLED_BYTES }
    }
}

/// Parts of outputs. Each list and each object is looked through once, however many of its parts are asked for: all this
/// happens inside one transaction.
#[derive(Debug, Default)]
pub struct Parts<'o> {
    /// By where the text of the list or object begins, and how long it is.
    known: HashMap<(usize, usize), Inside<'o>>,
    entries: usize,
}

#[derive(Debug)]
enum Inside<'o> {
    List(Vec<&'o RawValue>),
    Fields(HashMap<String, &'o RawValue>),
}

impl<'o> Parts<'o> {
    /// The part of a JSON text that a pointer names, if there is one.
    pub fn part(&mut self, text: &'o str, path: &str, budget: &mut Budget) -> Result<Option<&'o str>, String> {
        let mut at = text.trim();
        for step in path.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            let found = match self.inside(at, budget)? {
                Some(Inside::Fields(fields)) => fields.get(&step),
                Some(Inside::List(list)) => {
                    let plain = step == "0" || !step.starts_with(['0', '+']);
                    let index: Option<usize> = step.parse().ok().filter(|_| plain);
                    index.and_then(|index| list.get(index))
                }
                None => None,
            };
            let Some(found) = found else { return Ok(None) };
            at = found.get();
        }
        Ok(Some(at))
    }

    fn inside(&mut self, text: &'o str, budget: &mut Budget) -> Result<Option<&Inside<'o>>, String> {
        let place = (text.as_ptr() as usize, text.len());
        if !self.known.contains_key(&place) {
            budget.scan = budget.scan.checked_sub(text.len()).ok_or_else(|| {
                let limit = limits::SCANNED_BYTES >> 20;
                format!(
                    "the paths that its run follows at once lead through more than {limit} MiB of outputs: name fewer parts"
                )
            })?;
            let inside = match text.as_bytes().first() {
                Some(b'{') => serde_json::from_str(text).ok().map(Inside::Fields),
                Some(b'[') => serde_json::from_str(text).ok().map(Inside::List),
                _ => None,
            };
            let Some(inside) = inside else { return Ok(None) };
            self.entries += match &inside {
                Inside::List(list) => list.len(),
                Inside::Fields(fields) => fields.len(),
            };
            if self.entries > KNOWN_ENTRIES {
                self.known.clear();
                self.entries = 0;
            }
            self.known.insert(place, inside);
        }
        Ok(self.known.get(&place))
    }
}

/// How many parts are remembered at a time.
const KNOWN_ENTRIES: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(payload: &str) -> Vec<(String, Option<String>)> {
        find(payload).into_iter().map(|reference| (reference.key, reference.path)).collect()
    }

    fn named(key: &str, path: Option<&str>) -> (String, Option<String>) {
        (key.to_owned(), path.map(ToOwned::to_owned))
    }

    #[test]
    fn references_are_found_wherever_they_stand() {
        for (payload, found) in [
            (r#"{"$from":"a"}"#, vec![named("a", None)]),
            (r#"{"rows":{"$from":"a","path":"/rows"}}"#, vec![named("a", Some("/rows"))]),
            (r#"[ { "path" : "/0" , "$from" : "a" }, {"$from":"b"} ]"#, vec![named("a", Some("/0")), named("b", None)]),
            (r#"{"x":[{"y":{"\u0024from":"a\"b"}}]}"#, vec![named("a\"b", None)]),
            (r#"{"$from":"a","path":""}"#, vec![named("a", Some(""))]),
        ] {
            assert_eq!(names(payload), found, "{payload}");
        }
    }

    #[test]
    fn what_only_looks_like_a_reference_stays() {
        for payload in [
            "{}",
            "null",
            r#""from""#,
            r#""{\"$from\":\"a\"}""#,
            r#"{"$from":"a","other":1}"#,
            r#"{"other":1,"$from":"a"}"#,
            r#"{"$from":5}"#,
            r#"{"$from":"a","path":5}"#,
            r#"{"$from":"a","$from":"b"}"#,
            r#"{"path":"/from"}"#,
            r#"{"from":"a"}"#,
        ] {
            assert_eq!(names(payload), [], "{payload}");
        }
        assert_eq!(names(r#"{"$from":{"$from":"a"}}"#), [named("a", None)], "but one can stand inside");
    }

    #[test]
    fn nesting_costs_no_more_than_length() {
        let deep = r#"{"$from":"#.repeat(50_000) + "1" + &"}".repeat(50_000);
        assert_eq!(find(&deep), []);
    }

    fn filled(payload: &str) -> Result<String, String> {
        let outputs = HashMap::from([
            ("a", r#"{"rows":[1,2.50,{"x/y":"z","m~n":true}],"n":12345678901234567890}"#),
            ("list", " [10, 20] "),
            ("big", "\"0123456789\""),
        ]);
        fill(payload, &mut Parts::default(), &mut Budget::default(), |key| outputs.get(key).copied())
    }

    #[test]
    fn a_reference_is_replaced_by_what_it_names_and_the_rest_keeps_its_text() {
        for (payload, expected) in [
            (r#"{"$from":"list"}"#, "[10, 20]"),
            (r#"{ "k" : {"$from":"list","path":"/1"} , "n":1.0 }"#, r#"{ "k" : 20 , "n":1.0 }"#),
            (r#"[{"$from":"a","path":"/n"}]"#, "[12345678901234567890]"),
            (r#"[{"$from":"a","path":"/rows/1"}]"#, "[2.50]"),
            (r#"[{"$from":"a","path":"/rows/2/x~1y"},{"$from":"a","path":"/rows/2/m~0n"}]"#, r#"["z",true]"#),
            (r#"[{"$from":"nothing"}]"#, "[null]"),
            (r#"{"$from":"big","path":""}"#, "\"0123456789\""),
        ] {
            assert_eq!(filled(payload).as_deref(), Ok(expected), "{payload}");
        }
    }

    #[test]
    fn what_is_not_there_says_what_and_where() {
        for (payload, path) in [
            (r#"{"$from":"a","path":"/none"}"#, "/none"),
            (r#"{"$from":"a","path":"/rows/9"}"#, "/rows/9"),
            (r#"{"$from":"a","path":"/rows/01"}"#, "/rows/01"),
            (r#"{"$from":"a","path":"/rows/-"}"#, "/rows/-"),
            (r#"{"$from":"a","path":"/n/deeper"}"#, "/n/deeper"),
            (r#"{"$from":"nothing","path":"/x"}"#, "/x"),
        ] {
            let error = filled(payload).unwrap_err();
            assert!(error.contains(path), "{payload}: {error}");
        }
    }

    #[test]
    fn a_payload_that_grows_too_large_is_refused() {
        let half = format!("\"{}\"", "x".repeat(limits::PAYLOAD_BYTES / 2));
        let one = fill(r#"[{"$from":"a"}]"#, &mut Parts::default(), &mut Budget::default(), |_| Some(&half)).unwrap();
        assert!(one.len() > half.len());
        let error =
            fill(r#"[{"$from":"a"},{"$from":"a"}]"#, &mut Parts::default(), &mut Budget::default(), |_| Some(&half))
                .unwrap_err();
        assert!(error.contains("1048576"), "{error}");
    }

    #[test]
    fn many_parts_of_one_output_cost_one_look() {
        let list = format!("[{}]", vec!["{\"a\":1}"; 100_000].join(","));
        let (mut parts, mut budget) = (Parts::default(), Budget::default());
        for index in 0..100_000 {
            assert_eq!(parts.part(&list, &format!("/{index}"), &mut budget), Ok(Some("{\"a\":1}")));
        }
        assert_eq!(limits::SCANNED_BYTES - budget.scan, list.len());
    }

    #[test]
    fn what_leads_through_too_much_is_refused() {
        // Each of its lists is looked through once: half a million lists in each other are still too many.
        let deep = "[".repeat(250_000) + &"]".repeat(250_000);
        let error = Parts::default().part(&deep, &"/0".repeat(250_000), &mut Budget::default()).unwrap_err();
        assert!(error.contains("MiB"), "{error}");
    }

    #[test]
    fn the_payloads_of_one_run_are_bounded_together() {
        let big = format!("\"{}\"", "x".repeat(limits::PAYLOAD_BYTES - 10));
        let (mut parts, mut budget) = (Parts::default(), Budget::default());
        let mut fill = || fill(r#"{"$from":"a"}"#, &mut parts, &mut budget, |_| Some(&big));
        let filled = (0..64).filter(|_| fill().is_ok()).count();
        assert_eq!(filled, 64);
        let error = fill().unwrap_err();
        assert!(error.contains("64 MiB"), "{error}");
    }

    #[test]
    fn a_path_is_a_json_pointer() {
        let good = |path: &str| {
            let payload = serde_json::json!({"$from": "a", "path": path}).to_string();
            find(&payload)[0].has_good_path()
        };
        assert!(["", "/", "/a", "/a/0", "/a~0b~1c"].into_iter().all(good));
        assert!(!["a", "rows/0", "/a~", "/a~2"].into_iter().any(good));
    }
}
