use std::time::Duration;

use tempfile::TempDir;
use tenure_core::objects::{OutputRef, Prefix};
use tenure_objects::{Credentials, Limits, Objects, Output, Place, Settings};
use tenure_testkit::Moto;
use uuid::Uuid;

/// A store with nothing in it.
#[derive(Debug)]
pub struct Stand {
    pub objects: Objects,
    pub place: At,
}

#[derive(Debug)]
pub enum At {
    Folder(TempDir),
    Moto(Moto),
}

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Folder,
    /// A prefix in a bucket of moto.
    S3,
}

/// Each case on both.
#[macro_export]
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod in_a_folder {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::stand::Stand::new($crate::stand::Kind::Folder).await).await;
            })+
        }
        mod in_s3 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::stand::Stand::new($crate::stand::Kind::S3).await).await;
            })+
        }
    };
}

/// Long enough for a busy machine.
pub fn limits() -> Limits {
    Limits { request: Duration::from_secs(120), call: Duration::from_secs(300), objects: 50, ..Limits::default() }
}

impl Stand {
    pub async fn new(kind: Kind) -> Self {
        match kind {
            Kind::Folder => {
                let folder = TempDir::new().unwrap();
                let place = Place::Folder { path: folder.path().join("objects"), allow_file: true };
                let objects = Settings { limits: limits(), ..Settings::new(place) }.open().unwrap();
                Self { objects, place: At::Folder(folder) }
            }
            Kind::S3 => {
                let moto = Moto::start().await;
                for bucket in ["tenure-test", "lake"] {
                    let made = reqwest::Client::new().put(format!("{}/{bucket}", moto.url())).send().await.unwrap();
                    assert!(made.status().is_success());
                }
                let objects = Self::s3(&moto, limits()).open().unwrap();
                Self { objects, place: At::Moto(moto) }
            }
        }
    }

    pub fn s3(moto: &Moto, limits: Limits) -> Settings {
        let place = Place::S3 {
            root: Prefix::parse("s3://tenure-test/some/where/", false).unwrap(),
            endpoint_url: Some(moto.url()),
            region: Some("eu-central-1".into()),
            path_style: true,
        };
        let credentials = Credentials { access_key_id: "any".into(), secret_access_key: "any".into() };
        let buckets = ["lake".to_owned()].into();
        Settings { limits, buckets, credentials: Some(credentials), ..Settings::new(place) }
    }

    pub fn staging(&self, output: &OutputRef) -> Prefix {
        self.objects.layout().staging(output).unwrap()
    }

    pub async fn put(&self, prefix: &Prefix, name: &str, text: &str) {
        assert!(self.objects.put_new(prefix, name, text.to_owned().into()).await.unwrap(), "{name} is there");
    }

    /// Names of all objects below a prefix.
    pub async fn names(&self, prefix: &Prefix) -> Vec<String> {
        let mut names: Vec<_> = self.objects.list(prefix).await.unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    }
}

/// The first output of an attempt.
pub fn output(task: u128, attempt: u32) -> OutputRef {
    let id = Uuid::from_u128;
    OutputRef { dataset: id(0xda7a), version: id(0x7e1), task: id(task), attempt, output: 0 }
}

pub fn at<'a>(output: &OutputRef, location: &'a Prefix) -> Output<'a> {
    Output { location, dataset: output.dataset, version: Some(output.version) }
}
