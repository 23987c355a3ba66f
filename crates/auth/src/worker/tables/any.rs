//! Properties of any input.

use proptest::prelude::*;

use super::*;

fn all_keys() -> WorkerKeys {
    WorkerKeys { private: Some(private()), legacy: true, ..hmac_keys() }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>(), rest in "[A-Za-z0-9_.=-]{0,80}", now in any::<i64>()) {
        for token in [text.clone(), format!("stacyvm-worker-v1.{text}"), format!("tenure-worker-v1.{rest}")] {
            prop_assert!(all_keys().verify(&token, now, None, None, &|_| false).is_err());
        }
    }

    #[test]
    fn no_signed_payload_makes_it_panic(payload in any::<Vec<u8>>(), now in any::<i64>()) {
        let message = message(Format::Hmac, &payload);
        let signature = SigningKey::new(KEY).unwrap().sign(&message);
        prop_assert!(all_keys().verify(&token(&message, &signature), now, None, None, &|_| false).is_err());
    }

    /// Whatever the times are: what is believed has not ended, and lives no longer than it may.
    #[test]
    fn no_times_stretch_a_token(
        now in any::<i64>(),
        exp in -1500_i64..1500,
        iat in prop::option::of(-1500_i64..1500),
        nbf in prop::option::of(-100_i64..100),
        legacy: bool,
    ) {
        let at = |offset: i64| now.saturating_add(offset);
        let token = signed_with(json!({"exp": at(exp), "iat": iat.map(at), "nbf": nbf.map(at)}));
        let believed = judge(&WorkerKeys { legacy, ..hmac_keys() }, &token, now).is_ok();
        let lives = match iat {
            Some(iat) => iat <= 30 && exp - iat <= 900,
            None => legacy && exp <= 930,
        };
        // Beyond the ends of time nothing is promised but that it does not panic.
        prop_assume!((1..=i64::MAX - 1500).contains(&at(exp)) && now > i64::MIN + 1500);
        prop_assert_eq!(believed, exp > 0 && lives && nbf.is_none_or(|nbf| nbf <= 30));
    }
}
