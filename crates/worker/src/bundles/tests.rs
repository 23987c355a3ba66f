use super::fetch::said;

#[test]
fn standard_output_is_one_object() {
    assert_eq!(said(b" {\"status\": \"Completed\"}\n").unwrap()["status"], "Completed");
    for text in ["", "  \n", "[]", "1", "{} {}", "log\n{}", "{"] {
        let error = said(text.as_bytes()).unwrap_err();
        assert!(!error.is_retryable() && error.message().contains("one JSON object"), "{text}: {error}");
    }
}
