//! One process has the file: there is nobody to tell.

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::Sqlite;
use crate::error::StoreError;
use crate::notices::{Notice, NoticeStore};

#[async_trait]
impl NoticeStore for Sqlite {
    async fn notify(&self, _sender: &str, _notices: &[Notice]) -> Result<(), StoreError> {
        Ok(())
    }

    fn listen(&self, _own: &str) -> Option<mpsc::Receiver<Notice>> {
        None
    }
}
