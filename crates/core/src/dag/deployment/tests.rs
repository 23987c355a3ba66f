use super::*;
use crate::dag::testing::{Counter, dag, deploy, published, source};

#[test]
fn what_is_unknown_is_refused() {
    let mut deployment = Deployment::default();
    assert_eq!(deployment.cut_over("d", 1), Err(Refused::UnknownDag));
    assert_eq!(deployment.roll_back("d"), Err(Refused::UnknownDag));
    deploy(&mut deployment, &dag("d", vec![source("a", 0)]), &mut Counter::default(), false).unwrap();
    assert_eq!(deployment.cut_over("d", 9), Err(Refused::UnknownVersion));
    assert_eq!(deployment.roll_back("d"), Err(Refused::NoPrevious));
    assert!(!deployment.make_ready("d", 1, 0), "it is active");
}

#[test]
fn a_dataset_has_its_name_while_an_active_version_publishes_it() {
    let (mut deployment, mut fresh) = (Deployment::default(), Counter::default());
    let named = published(dag("d", vec![source("a", 0)]), "a", "rows");
    deploy(&mut deployment, &named, &mut fresh, true).unwrap();
    assert_eq!(deployment.dataset_named("rows"), None);
    deployment.cut_over("d", 1).unwrap();
    let id = deployment.dataset_named("rows").unwrap();
    assert_eq!(deployment.name_of(id).map(|name| &**name), Some("rows"));
    deploy(&mut deployment, &dag("d", vec![source("a", 0)]), &mut fresh, false).unwrap();
    assert_eq!((deployment.dataset_named("rows"), deployment.name_of(id)), (None, None));
}

#[test]
fn a_document_of_nothing_is_empty() {
    assert_eq!(serde_json::from_str::<Deployment>("{}").unwrap(), Deployment::default());
}
