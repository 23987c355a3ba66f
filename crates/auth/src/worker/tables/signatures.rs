//! Whose signature is believed.

use super::*;

#[test]
fn both_vectors_verify_and_are_minted_byte_for_byte() {
    let keys = WorkerKeys { private: Some(private()), ..hmac_keys() };
    let request = MintRequest {
        token_id: Some("00112233445566778899aabbccddeeff"),
        ..MintRequest::new("worker-a", Audience::Rpc, IAT)
    };
    assert_eq!(signed_text(PAYLOAD), HMAC_TOKEN);
    assert_eq!(keys.mint(&request).unwrap().token.reveal(), HMAC_TOKEN);
    assert_eq!(keys.mint(&MintRequest { ed25519: true, ..request }).unwrap().token.reveal(), ED25519_TOKEN);
    assert_eq!(private().public().to_string(), PUBLIC);

    let by_private_half = WorkerKeys { private: Some(private()), ..WorkerKeys::default() };
    for (keys, token) in [(hmac_keys(), HMAC_TOKEN), (ed25519_keys(), ED25519_TOKEN), (by_private_half, ED25519_TOKEN)]
    {
        let claims = keys.verify(token, IAT + 1, Some(Audience::Rpc), Some("worker-a"), &|_| false).unwrap();
        assert_eq!(claims.worker_id, "worker-a");
        assert_eq!(claims.token_id, "00112233445566778899aabbccddeeff");
        assert_eq!(claims.scopes, Scopes::all());
        assert_eq!(claims.stated, serde_json::from_str(PAYLOAD).unwrap());
    }
}

#[test]
fn rotation_keys_verify_and_other_keys_do_not() {
    let key = |text: &str| SigningKey::new(text).unwrap();
    let keys = |active: Option<&str>, rotation: &[&str]| WorkerKeys {
        active: active.map(key),
        rotation: rotation.iter().copied().map(key).collect(),
        ..WorkerKeys::default()
    };
    let token = signed_with(json!({}));
    for (keys, refusal) in [
        (keys(Some(KEY), &[]), None),
        (keys(Some(&format!(" {KEY}\n")), &[]), None),
        (keys(Some("new"), &["older", KEY]), None),
        (keys(None, &[KEY]), None),
        (keys(Some("new"), &["older"]), Some(Refusal::Signature)),
        (ed25519_keys(), Some(Refusal::NoKey)),
        (WorkerKeys::default(), Some(Refusal::NoKey)),
    ] {
        assert_eq!(judge(&keys, &token, IAT).err(), refusal, "{keys:?}");
    }
    let rpc = |keys: &WorkerKeys| keys.verify(ED25519_TOKEN, IAT, None, None, &|_| false).err();
    let other = PrivateKey::random();
    assert_eq!(rpc(&hmac_keys()), Some(Refusal::NoKey));
    assert_eq!(rpc(&WorkerKeys { public: vec![other.public()], ..hmac_keys() }), Some(Refusal::Signature));
    assert_eq!(rpc(&WorkerKeys { private: Some(other.clone()), ..ed25519_keys() }), None);
    assert_eq!(rpc(&WorkerKeys { public: vec![other.public(), private().public()], ..hmac_keys() }), None);
    // What is signed with a public key as if it were a secret one is believed by nobody who holds only that key.
    let confused = WorkerKeys { active: SigningKey::new(PUBLIC), ..WorkerKeys::default() };
    let minted = confused.mint(&MintRequest::new("w-1", Audience::ControlPlane, IAT)).unwrap();
    assert_eq!(judge(&ed25519_keys(), minted.token.reveal(), IAT).err(), Some(Refusal::NoKey));
    let swapped = minted.token.reveal().replace(Format::Hmac.prefix(), Format::Ed25519.prefix());
    assert_eq!(judge(&ed25519_keys(), &swapped, IAT).err(), Some(Refusal::Signature));
}

#[test]
fn whatever_is_changed_breaks_the_signature() {
    let keys = WorkerKeys { active: SigningKey::new(KEY), ..ed25519_keys() };
    let verify = |token: &str| keys.verify(token, IAT, None, None, &|_| false);
    for good in [HMAC_TOKEN, ED25519_TOKEN] {
        assert!(verify(good).is_ok());
        for (at, byte) in good.bytes().enumerate() {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = if byte == b'A' { b'B' } else { b'A' };
            assert!(verify(std::str::from_utf8(&bytes).unwrap()).is_err(), "byte {at}");
        }
    }
    let (hmac, ed25519) = (Format::Hmac.prefix(), Format::Ed25519.prefix());
    assert_eq!(verify(&HMAC_TOKEN.replace(hmac, ed25519)).err(), Some(Refusal::Signature));
    assert_eq!(verify(&ED25519_TOKEN.replace(ed25519, hmac)).err(), Some(Refusal::Signature));
    // A good signature of another payload.
    let other = signed_with(json!({}));
    let signature = other.rsplit('.').next().unwrap();
    let head = HMAC_TOKEN.rsplit_once('.').unwrap().0;
    assert_eq!(verify(&format!("{head}.{signature}")).err(), Some(Refusal::Signature));
    for length in [0, 1, 16, 31] {
        let all = URL_SAFE_NO_PAD.decode(HMAC_TOKEN.rsplit('.').next().unwrap()).unwrap();
        let cut = URL_SAFE_NO_PAD.encode(&all[..length]);
        assert_eq!(verify(&format!("{head}.{cut}")).err(), Some(Refusal::Signature), "{length}");
    }
}

/// The same signature with the order of the group added to its second half: a lenient verifier would take it.
#[test]
fn an_ed25519_signature_has_one_spelling() {
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let (head, signature) = ED25519_TOKEN.rsplit_once('.').unwrap();
    let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let mut carry = 0;
    for (byte, order) in bytes[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = u8::try_from(sum & 0xff).unwrap();
        carry = sum >> 8;
    }
    assert_eq!(carry, 0);
    let token = token(head, &bytes);
    assert_eq!(ed25519_keys().verify(&token, IAT, None, None, &|_| false).err(), Some(Refusal::Signature));
}
