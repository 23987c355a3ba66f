//! Objects that are too large to be kept in memory.

use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{MultipartUpload, ObjectStoreExt};
use tenure_core::objects::Prefix;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::error::ObjectError;
use crate::store::Objects;

/// S3 takes no smaller parts, but for the last one.
const PART_BYTES: usize = 8 << 20;

impl Objects {
    /// Writes an object part by part, in place of the one that is there. Each part must arrive within the time of a call.
    /// What is not finished is not an object.
    pub async fn put_from(
        &self,
        prefix: &Prefix,
        name: &str,
        content: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<(), ObjectError> {
        let place = self.place(prefix)?;
        let path = place.path(name)?;
        self.check_links(&place, name).await?;
        let mut upload = self.within("write", async { Ok(place.store.put_multipart(&path).await?) }).await?;
        match self.put_parts(&mut *upload, content).await {
            Ok(()) => Ok(()),
            Err(error) => {
                // Parts that stay cost space, and are not seen.
                let aborted = self.within("take back a write", async { Ok(upload.abort().await?) }).await;
                if let Err(aborted) = aborted {
                    tracing::warn!(error = %aborted, "cannot take back an object that was not written whole");
                }
                Err(error)
            }
        }
    }

    async fn put_parts(
        &self,
        upload: &mut dyn MultipartUpload,
        content: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<(), ObjectError> {
        loop {
            let mut part = BytesMut::with_capacity(PART_BYTES);
            while part.len() < PART_BYTES {
                let length = content.read_buf(&mut part).await.map_err(ObjectError::unavailable)?;
                if length == 0 {
                    break;
                }
            }
            let is_last = part.len() < PART_BYTES;
            if !part.is_empty() {
                self.within("write", async { Ok(upload.put_part(part.freeze().into()).await?) }).await?;
            }
            if is_last {
                break;
            }
        }
        self.within("write", async { Ok(upload.complete().await.map(drop)?) }).await
    }

    /// An object as its bytes come, and how many there are.
    pub async fn read(
        &self,
        prefix: &Prefix,
        name: &str,
    ) -> Result<(u64, BoxStream<'static, Result<Bytes, ObjectError>>), ObjectError> {
        let place = self.place(prefix)?;
        let path = place.path(name)?;
        self.check_links(&place, name).await?;
        let found = self.within("read", async { Ok(place.store.get_opts(&path, Default::default()).await?) }).await?;
        Ok((found.meta.size, found.into_stream().map_err(ObjectError::from).boxed()))
    }
}
