//! Requests as existing clients send them: any content type, blank parameters, no body.

use std::collections::HashMap;

use axum::body::Body;
use axum::http::{HeaderMap, Uri};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tenure_core::limits::BODY_BYTES;

use crate::access::caller::Caller;
use crate::error::{BadRequest, Fault};
use crate::limits;
use crate::memory::Room;
use crate::request::{Raw, collect};
use crate::state::App;

/// The parameters of a query. A blank one is absent, and unknown ones are ignored.
#[derive(Debug)]
pub struct Params(HashMap<String, String>);

impl Params {
    pub fn of(uri: &Uri) -> Result<Self, Fault> {
        // Postgres keeps no NUL in a text: nothing can match one.
        if uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(Fault::malformed("the query must not contain NUL"));
        }
        let read = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        let pairs = read.map_err(|_| Fault::malformed("the query cannot be read"))?.0;
        // The first of several counts, as a client that checks one would expect.
        let mut found = HashMap::new();
        for (name, value) in pairs.into_iter().filter(|(_, value)| !value.is_empty()) {
            found.entry(name).or_insert(value);
        }
        Ok(Self(found))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn required(&self, name: &str) -> Result<&str, Fault> {
        self.text(name).ok_or_else(|| Fault::bad(name, &format!("{name} is required")))
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>, Fault> {
        let wrong = |_| Fault::bad(name, &format!("{name} must be a whole number"));
        self.text(name).map(|text| text.parse().map_err(wrong)).transpose()
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, Fault> {
        match self.text(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(None),
            Some("true" | "1" | "yes") => Ok(Some(true)),
            Some("false" | "0" | "no") => Ok(Some(false)),
            Some(_) => Err(Fault::bad(name, &format!("{name} must be true or false"))),
        }
    }
}

/// Reads a JSON object, whatever its type is said to be. No body is an empty object. What it takes in memory counts for the
/// tenant of the caller as long as the room is kept.
pub async fn read<T: DeserializeOwned>(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
) -> Result<(T, Room), Fault> {
    read_up_to(app, caller, headers, body, BODY_BYTES).await
}

pub async fn read_up_to<T: DeserializeOwned>(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<(T, Room), Fault> {
    let mut room = app.sandboxes()?.bounds.room(&caller.share());
    let collecting = collect(&mut room, headers, body, limit);
    let collected = tokio::time::timeout(limits::BODY_TIMEOUT, collecting).await;
    let bytes = collected.map_err(|_| Fault::from(BadRequest::BodyTimeout))??;
    Ok((decode(bytes)?, room))
}

fn decode<T: DeserializeOwned>(bytes: Bytes) -> Result<T, Fault> {
    let bytes = if bytes.trim_ascii().is_empty() { Bytes::from_static(b"{}") } else { bytes };
    Raw::from(bytes).decode()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn params(query: &str) -> Result<Params, Fault> {
        Params::of(&format!("/x?{query}").parse().unwrap())
    }

    #[test]
    fn blank_parameters_are_absent_and_unknown_ones_ignored() {
        let found = params("limit=&recursive=true&path=%2Fa%20b&path=/c&news=1&lines=-5").unwrap();
        assert_eq!((found.number("limit").unwrap(), found.number("lines").unwrap()), (None, Some(-5)));
        assert_eq!((found.flag("recursive").unwrap(), found.text("path")), (Some(true), Some("/a b")));
        assert!(params("recursive=maybe").unwrap().flag("recursive").is_err());
        assert!(params("limit=ten").unwrap().number("limit").is_err());
        assert!(params("path=a%00b").is_err());
        assert!(params("").unwrap().required("path").is_err());
    }

    #[tokio::test]
    async fn bodies_are_read_without_a_content_type_and_none_is_an_empty_object() {
        #[derive(serde::Deserialize)]
        struct Sample {
            #[serde(default)]
            a: u8,
        }
        let memory = Memory::new(1 << 20);
        let read_text = async |text: &'static str| {
            let mut room = Memory::room(&memory, &"tenant".into());
            decode::<Sample>(collect(&mut room, &HeaderMap::new(), Body::from(text), 100).await?)
        };
        assert_eq!(read_text(r#"{"a":1,"b":2}"#).await.unwrap().a, 1);
        for text in ["", " \n", "{}"] {
            assert_eq!(read_text(text).await.unwrap().a, 0);
        }
        for text in ["[]", "{", "1", r#"{"a":"x"}"#] {
            assert!(read_text(text).await.is_err(), "{text}");
        }
        let long = " ".repeat(101).leak();
        assert!(matches!(read_text(long).await, Err(Fault::Request(BadRequest::BodyTooLarge { limit: 100 }))));
    }
}
