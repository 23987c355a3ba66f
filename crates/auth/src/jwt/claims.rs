use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::TokenError;

/// JSON readers keep integers only up to here; a date beyond it is no date.
const MAX_DATE_S: i64 = (1 << 53) - 1;

/// The claims of a token whose signature is good. A claim that is `null` is absent.
pub(crate) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn new(object: Map<String, Value>) -> Self {
        Self(object)
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn required(&self, name: &'static str) -> Result<&Value, TokenError> {
        self.get(name).ok_or(TokenError::MissingClaim(name))
    }

    /// A text that is not empty.
    pub fn text(&self, name: &'static str) -> Result<&str, TokenError> {
        self.required(name)?.as_str().filter(|text| !text.is_empty()).ok_or(TokenError::InvalidClaim(name))
    }

    /// A whole number that is not negative, written as one: `1.0` and `"1"` are none.
    pub fn count<N: TryFrom<u64>>(&self, name: &'static str) -> Result<N, TokenError> {
        let number = self.required(name)?.as_u64().and_then(|number| N::try_from(number).ok());
        number.ok_or(TokenError::InvalidClaim(name))
    }

    pub fn typed<T: DeserializeOwned>(&self, name: &'static str) -> Result<T, TokenError> {
        serde_json::from_value(self.required(name)?.clone()).map_err(|_| TokenError::InvalidClaim(name))
    }

    /// A point in time in unix seconds. Only whole numbers.
    pub fn date(&self, name: &'static str) -> Result<i64, TokenError> {
        let date = self.required(name)?.as_i64().filter(|date| date.abs() <= MAX_DATE_S);
        date.ok_or(TokenError::InvalidClaim(name))
    }

    /// As [`Claims::date`], and fractions too, which RFC 7519 allows and some providers send. Cut to whole seconds.
    pub fn loose_date(&self, name: &'static str) -> Result<i64, TokenError> {
        match self.required(name)?.as_f64() {
            // A whole number of this size survives the way through f64 and the cast.
            Some(date) if date.abs() <= MAX_DATE_S as f64 => Ok(date.floor() as i64),
            _ => Err(TokenError::InvalidClaim(name)),
        }
    }

    pub fn check_issuer(&self, expected: &str) -> Result<(), TokenError> {
        if self.text("iss")? == expected { Ok(()) } else { Err(TokenError::Issuer) }
    }

    /// `aud` is this one text. A list is refused, since a token for two audiences would be good in two places.
    pub fn check_only_audience(&self, expected: &str) -> Result<(), TokenError> {
        match self.required("aud")? {
            Value::String(found) if found == expected => Ok(()),
            _ => Err(TokenError::Audience),
        }
    }

    /// `aud` is this text or a list that has it.
    pub fn check_audience(&self, expected: &str) -> Result<(), TokenError> {
        let found = match self.required("aud")? {
            Value::String(found) => found == expected,
            Value::Array(list) => list.iter().any(|one| one.as_str() == Some(expected)),
            _ => false,
        };
        if found { Ok(()) } else { Err(TokenError::Audience) }
    }
}

/// Good while `not_before - leeway <= now < expires + leeway`.
pub(crate) fn check_times(
    not_before_s: Option<i64>,
    expires_s: i64,
    now_s: i64,
    leeway_s: u32,
) -> Result<(), TokenError> {
    let leeway_s = i64::from(leeway_s);
    if not_before_s.is_some_and(|not_before_s| now_s < not_before_s.saturating_sub(leeway_s)) {
        return Err(TokenError::NotYetValid);
    }
    if now_s >= expires_s.saturating_add(leeway_s) { Err(TokenError::Expired) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims(value: Value) -> Claims {
        match value {
            Value::Object(object) => Claims::new(object),
            _ => panic!("claims are an object"),
        }
    }

    #[test]
    fn our_own_dates_and_counts_are_whole_numbers() {
        let claims = claims(json!({"int": 7, "neg": -7, "float": 7.0, "text": "7", "big": 1_u64 << 53, "null": null}));
        assert_eq!(claims.date("int"), Ok(7));
        assert_eq!(claims.date("neg"), Ok(-7));
        assert_eq!(claims.count::<u32>("int"), Ok(7));
        for name in ["float", "text", "big"] {
            assert_eq!(claims.date(name), Err(TokenError::InvalidClaim(name)));
        }
        for name in ["float", "text", "neg", "big"] {
            assert_eq!(claims.count::<u32>(name), Err(TokenError::InvalidClaim(name)));
        }
        assert_eq!(claims.date("null"), Err(TokenError::MissingClaim("null")));
        assert_eq!(claims.date("none"), Err(TokenError::MissingClaim("none")));
    }

    #[test]
    fn dates_of_providers_may_have_fractions() {
        let claims = claims(json!({"int": 7, "float": 7.9, "neg": -0.5, "text": "7", "big": 1e300}));
        assert_eq!(claims.loose_date("int"), Ok(7));
        assert_eq!(claims.loose_date("float"), Ok(7));
        assert_eq!(claims.loose_date("neg"), Ok(-1));
        for name in ["text", "big"] {
            assert_eq!(claims.loose_date(name), Err(TokenError::InvalidClaim(name)));
        }
    }

    #[test]
    fn the_leeway_holds_on_both_sides_and_ends() {
        for (now, expected) in [
            (97, Err(TokenError::NotYetValid)),
            (98, Ok(())),
            (100, Ok(())),
            (110, Ok(())),
            (111, Ok(())),
            (112, Err(TokenError::Expired)),
        ] {
            assert_eq!(check_times(Some(100), 110, now, 2), expected, "{now}");
        }
        assert_eq!(check_times(None, i64::MAX, i64::MAX - 1, 30), Ok(()));
        assert_eq!(check_times(Some(i64::MIN), i64::MIN, i64::MIN, 0), Err(TokenError::Expired));
    }

    #[test]
    fn a_list_of_audiences_is_for_providers_only() {
        let one = claims(json!({"aud": "a"}));
        let list = claims(json!({"aud": ["b", "a"]}));
        let odd = claims(json!({"aud": {"a": "a"}}));
        assert_eq!(one.check_only_audience("a"), Ok(()));
        assert_eq!(list.check_only_audience("a"), Err(TokenError::Audience));
        assert_eq!(list.check_audience("a"), Ok(()));
        assert_eq!(list.check_audience("c"), Err(TokenError::Audience));
        assert_eq!(odd.check_audience("a"), Err(TokenError::Audience));
        assert_eq!(claims(json!({})).check_audience("a"), Err(TokenError::MissingClaim("aud")));
    }
}
