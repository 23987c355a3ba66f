use std::sync::Arc;

use tenure_core::dag::Schema;
use tenure_data::{DataError, Table};

use crate::stand::{column, each, keys, read, rows, table};

#[tokio::test]
async fn a_table_gains_nullable_columns_and_nothing_else() {
    each(async |stand| {
        let first = table(1, &[]);
        stand.store.ensure(&first).await.unwrap();
        stand.store.ensure(&first).await.unwrap();
        stand.store.append(&first, vec![keys(&first, 1..=2)]).await.unwrap();
        let wider = table(1, &[column("note", "text", true)]);
        stand.store.ensure(&wider).await.unwrap();
        stand.store.append(&wider, vec![rows(&wider, "{\"key\":\"k3\",\"note\":\"x\"}")]).await.unwrap();
        // Rows of the earlier schema are still taken.
        stand.store.append(&first, vec![keys(&first, [4])]).await.unwrap();
        let notes: Vec<_> = read(&stand.store.reading(&wider).await.unwrap(), 0).await;
        let notes: Vec<_> = notes.into_iter().map(|(seq, mut cells)| (seq, cells.pop().flatten())).collect();
        assert_eq!(notes, [(1, None), (2, None), (3, Some("x".to_owned())), (4, None)]);
        for (more, why) in [
            (column("note", "int64", true), "its column `note` has another type or nullability"),
            (column("note", "text", false), "its column `note` has another type or nullability"),
            (column("must", "text", false), "it has no column `must`"),
        ] {
            let error = stand.store.ensure(&table(1, &[more])).await.unwrap_err();
            assert!(matches!(&error, DataError::Incompatible(said) if said == why), "{error:?}");
        }
        let required = table(1, &[]);
        let columns = required.schema.columns[..1].to_vec();
        let narrower =
            Table::new(required.dataset, Arc::new(Schema { columns, unique: vec!["org_id".into()], indexes: vec![] }));
        let error = stand.store.ensure(&narrower).await.unwrap_err();
        assert!(matches!(&error, DataError::Incompatible(said) if said.contains("`key` is required")), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_reader_is_told_all_that_it_needs() {
    each(async |stand| {
        let table = table(7, &[column("at", "timestamptz", true)]);
        stand.store.ensure(&table).await.unwrap();
        let reading = stand.store.reading(&table).await.unwrap();
        assert_eq!((reading.upto, reading.sequence, reading.org), (None, "_seq", "org_id"));
        assert_eq!(reading.table, "dataset_00000000-0000-0000-0000-000000000007");
        assert_eq!(reading.columns, table.schema.columns);
        assert!(!format!("{reading:?}").contains("postgres://"), "an address may hold a password");
        stand.store.append(&table, vec![keys(&table, 1..=5)]).await.unwrap();
        assert_eq!(stand.store.reading(&table).await.unwrap().upto, Some(5));
    })
    .await;
}

#[tokio::test]
async fn a_table_that_nobody_made_is_made_by_the_first_rows() {
    let stand = crate::stand::sqlite();
    let table = table(9, &[]);
    assert_eq!(stand.store.append(&table, vec![keys(&table, 1..=2)]).await.unwrap().upto, Some(2));
}
