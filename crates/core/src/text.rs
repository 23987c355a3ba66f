//! Text that people read as something else than it is.

/// Whether a character cannot be seen, or changes how what follows is shown: control characters, marks of direction, and
/// characters without width. Names must not have them, and a terminal is not shown them.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_known() {
        for c in
            ['\0', '\u{1b}', '\u{7f}', '\u{85}', '\u{9b}', '\u{200b}', '\u{202e}', '\u{2066}', '\u{feff}', '\u{e0041}']
        {
            assert!(is_unseen(c), "{:x}", u32::from(c));
        }
        assert!(!"aÄß€漢字 ✓é-_.:/🙂".chars().any(is_unseen));
    }
}
