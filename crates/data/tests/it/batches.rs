use tenure_data::Appended;

use crate::stand::{each, keys, read, rows, table};

#[tokio::test]
async fn rows_are_numbered_and_repeats_change_nothing() {
    each(async |stand| {
        let table = table(1, &[]);
        stand.store.ensure(&table).await.unwrap();
        let append = async |batches| stand.store.append(&table, batches).await.unwrap();
        assert_eq!(append(vec![keys(&table, [])]).await, Appended { rows: 0, upto: None });
        assert_eq!(append(vec![keys(&table, 1..=3)]).await, Appended { rows: 3, upto: Some(3) });
        assert_eq!(append(vec![keys(&table, 1..=3)]).await, Appended { rows: 0, upto: Some(3) }, "a repeat");
        // Known rows first, in the middle and last; a row that is there twice in its own batch; two batches at once.
        let appended = append(vec![keys(&table, [1, 4, 2, 4, 5, 3]), keys(&table, [5, 6])]).await;
        assert_eq!(appended.rows, 3);
        let found = read(&stand.store.reading(&table).await.unwrap(), 0).await;
        assert_eq!(Some(found.last().unwrap().0), appended.upto, "the cursor is the number of a row");
        let keys: Vec<_> = found.iter().map(|(_, cells)| cells[1].clone().unwrap()).collect();
        assert_eq!(keys, ["k1", "k2", "k3", "k4", "k5", "k6"], "in the order of commits and rows");
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(found[5].1[2].as_deref(), Some("6"));
    })
    .await;
}

#[tokio::test]
async fn the_first_row_of_a_key_stays() {
    each(async |stand| {
        let table = table(1, &[]);
        stand.store.ensure(&table).await.unwrap();
        for n in [1, 2] {
            let line = format!("{{\"key\":\"a\",\"n\":{n}}}");
            stand.store.append(&table, vec![rows(&table, &line)]).await.unwrap();
        }
        let found = read(&stand.store.reading(&table).await.unwrap(), 0).await;
        assert_eq!((found.len(), found[0].1[2].as_deref()), (1, Some("1")));
    })
    .await;
}

#[tokio::test]
async fn a_large_batch_is_one_transaction() {
    each(async |stand| {
        let table = table(1, &[]);
        stand.store.ensure(&table).await.unwrap();
        let appended = stand.store.append(&table, vec![keys(&table, 0..50_000)]).await.unwrap();
        assert_eq!(appended, Appended { rows: 50_000, upto: Some(50_000) });
    })
    .await;
}
