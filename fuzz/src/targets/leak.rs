//! Messages hold nothing of what was judged.

const WINDOW: usize = 8;

/// Fails if the message holds eight consecutive bytes of the input. Words that our own messages are made of are no
/// secrets; what is counted looks like key material: letters of base64url, with a capital and a digit among them.
pub fn nothing_of(input: &str, message: &str) {
    assert!(message.len() < 400, "a message of {} bytes", message.len());
    let leaked = input.as_bytes().windows(WINDOW).filter(|window| is_material(window)).find(|window| {
        let mut places = message.as_bytes().windows(WINDOW);
        places.any(|place| place == *window)
    });
    assert!(leaked.is_none(), "a message quotes its input: {message}");
}

fn is_material(window: &[u8]) -> bool {
    window.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        && window.iter().any(u8::is_ascii_uppercase)
        && window.iter().any(u8::is_ascii_digit)
}
