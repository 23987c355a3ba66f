//! The data plane: addresses that data and keys travel to, and what the query process may do.

use super::Report;
use super::objects::crosses_network;
use crate::config::Config;
use crate::data_store::DataPlace;

pub(super) fn check(config: &Config, report: &mut Report) {
    let sts = config.credentials.sts.as_ref().and_then(|sts| sts.endpoint_url.as_deref());
    let lambda = config.runtimes.lambda.as_ref().and_then(|lambda| lambda.endpoint_url.as_deref());
    let addresses = [
        ("dispatch.s3.endpoint_url", config.credentials.s3_endpoint_url.as_deref(), "data of tasks crosses"),
        ("dispatch.sts.endpoint_url", sts, "keys for the object store cross"),
        ("dispatch.lambda.endpoint_url", lambda, "tasks and their tokens cross"),
        (
            "query.endpoint",
            config.query.endpoints.iter().map(String::as_str).find(|url| crosses_network(url)),
            "rows cross",
        ),
    ];
    for (key, url, what) in addresses {
        if url.is_some_and(crosses_network) {
            let fix = match key {
                "query.endpoint" => {
                    "run query processes on this machine, or keep query.endpoint in a private network".to_owned()
                }
                key => format!("use https:// in {key}, or remove it"),
            };
            report.risk(key, format!("{what} the network unencrypted"), &fix);
        } else {
            report.pass(key, "is encrypted, or on this machine");
        }
    }
    let asks = config.query.enabled || !config.query.endpoints.is_empty();
    let is_postgres = matches!(config.data_store.place, DataPlace::Postgres(_));
    if asks && is_postgres && config.data_store.read_url.is_none() {
        report.warn(
            "dispatch.data_store.read_url",
            "query processes get the address that the server itself uses, and only promise to read",
            "set dispatch.data_store.read_url to a role that can only SELECT from the schema tenure_data",
        );
    } else {
        report.pass("dispatch.data_store.read_url", "query processes cannot write rows, or there are none");
    }
}
