//! Bundles of code.

use tenure_store::bundles::{BundleRow, NewBundle};
use uuid::Uuid;

use crate::common::{Fixture, START};

crate::on_both_stores!(a_bundle_is_recorded_once, an_organisation_sees_its_own, the_number_of_bundles_is_bounded);

fn new(n: u128) -> NewBundle {
    let sha256 = format!("{n:064x}").into();
    NewBundle { id: Uuid::from_u128(n), sha256, manifest: format!("{{\"n\":{n}}}").into(), bytes: 7 }
}

async fn a_bundle_is_recorded_once(t: &Fixture) {
    t.store.add_bundle("a", &new(1), 9).await.unwrap();
    let again = NewBundle { id: Uuid::from_u128(5), ..new(1) };
    t.store.add_bundle("a", &again, 9).await.unwrap();
    let NewBundle { id, sha256, manifest, bytes } = new(1);
    let row = BundleRow { id, org: "a".into(), sha256, manifest, bytes, created_at: START };
    assert_eq!(t.store.bundle_of("a", &new(1).sha256).await.unwrap(), Some(row.clone()));
    assert_eq!(t.store.bundles("a", &[Uuid::from_u128(5), row.id]).await.unwrap(), [row]);
    assert_eq!(t.store.bundle_of("a", &new(2).sha256).await.unwrap(), None);
}

async fn an_organisation_sees_its_own(t: &Fixture) {
    t.store.add_bundle("a", &new(1), 9).await.unwrap();
    assert!(t.store.bundles("b", &[new(1).id]).await.unwrap().is_empty());
    assert_eq!(t.store.known_bundles(&[new(2).id, new(1).id]).await.unwrap(), [new(1).id], "whoever has it");
    assert_eq!(t.store.bundle_of("b", &new(1).sha256).await.unwrap(), None);
    // The same bytes of another organisation are another bundle.
    t.store.add_bundle("b", &NewBundle { id: Uuid::from_u128(2), ..new(1) }, 9).await.unwrap();
    assert_eq!(t.store.bundle_of("b", &new(1).sha256).await.unwrap().unwrap().id, Uuid::from_u128(2));
}

async fn the_number_of_bundles_is_bounded(t: &Fixture) {
    for n in 1..=3 {
        t.store.add_bundle("a", &new(n), 2).await.unwrap();
    }
    t.store.add_bundle("b", &new(4), 2).await.unwrap();
    assert_eq!(t.store.bundles("a", &[new(1).id, new(2).id, new(3).id]).await.unwrap().len(), 2);
    assert!(t.store.bundle_of("b", &new(4).sha256).await.unwrap().is_some());
}
