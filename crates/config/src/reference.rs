//! The reference of all keys, as it stands in docs/CONFIGURATION.md.

use super::env;
use super::example::written;
use super::keys::{self, Change, Key, Shape};

const HEAD: &str = "\
# Configuration

Generated from the table of keys in `crates/config/src/keys`; `TENURE_BLESS=1 cargo test -p tenure-config reference`
writes it again. `tenure config example` prints a file to start from, `tenure config show` the current values and their
origins, `tenure config lint --production` what a production system should change.

## Where values come from

1. Flags of the command: `--listen`, `--store`, `--data`.
2. Variables: `TENURE_` and the path in upper case, with `__` between levels. `auth.worker_token` is
   `TENURE_AUTH__WORKER_TOKEN`. Lists are separated by commas, maps are JSON objects.
3. The file: `--config`, else `TENURE_CONFIG`, else the first of `./tenure.yaml`, `~/.tenure/config.yaml` and
   `/etc/tenure/tenure.yaml` that exists. Names of StacyVM are tried last: see the end of this page.
4. The default.

For each key, the first of these that sets it takes precedence. A file looks like this:

```yaml
server:
  host: 0.0.0.0
  tls:
    cert_file: tls/server.crt
    key_file: tls/server.key
auth:
  enabled: true
  api_key_file: /run/secrets/api-key
  oidc_admin_groups: [platform, oncall]
```

Unknown keys and invalid values are errors that name the file and line, or the variable. The process then exits with
code 2.

## Values

**Duration**: numbers with units: `250ms`, `30s`, `1h30m`, `7d`; `0` needs no unit. At most 100 years. **Size**: bytes, or
a number with `KiB`, `MiB`, `GiB`, `KB`, `MB` or `GB`. **File**: a path. A relative path in the configuration file is
relative to that file, in a variable to the working folder.

**Secrets** are never printed. A single secret has a second key that ends in `_file` and names a file with the value;
surrounding white space is removed. Setting both, an empty file and an unreadable file are errors. Worker secrets must
differ from user keys.

**Changes.** Keys marked *reload* are read again within 5 s of a change to a file, and on SIGHUP. An invalid configuration
is rejected: the previous values stay in effect and the error is logged. Other keys need a restart. Flags and variables
keep the values they had at start.
";

const TAIL: &str = "
## The profile `stacyvm`

The profile lets an installation of StacyVM run with its own files, variables and scripts. It is on if

- the program is started as `stacyvm`: `tenure compat link DIR` creates that link;
- the configuration was found under a name of StacyVM: the file that `STACYVM_CONFIG` names, `./stacyvm.yaml`,
  `~/.stacyvm/config.yaml`, or any file whose name starts with `stacyvm.`;
- `compat: stacyvm` is set.

`STACYVM_CONFIG` is read after `TENURE_CONFIG`. The two other files are looked for last; a program that was started as
`stacyvm` looks for them first. With the profile

- variables `STACYVM_` and the path in upper case, with `_` between levels, are read after those of Tenure: `STACYVM_AUTH_API_KEY`
  is `auth.api_key`. Unknown ones are ignored, empty ones are unset. Empty texts in the file are unset, too;
- the sections `providers.firecracker`, `providers.e2b`, `providers.custom`, `providers.proot`,
  `providers.docker.pool_security` and `pool` are accepted. What they enable is not available: `tenure config lint` and the
  log of the server say so. `providers.mock` is `providers.process`, with and without the profile;
- the drivers `sqlite3` and `postgresql` are `sqlite` and `postgres`;
- these defaults change:

| Key | Default |
|---|---|
| `worker.local` | `true` |
| `server.cors_allowed_origins` | `[\"*\"]` |
| `server.preview_auth` | `none` |
| `auth.admin_fallback_enabled` | `true` |
| `auth.api_key_role` | `operator` |
| `providers.docker.network_mode` | `bridge` |
| `metrics.legacy_names` | `true` |

A program that was started as `stacyvm` has the commands `serve`, `worker`, `config`, `spawn`, `exec`, `kill`, `list` and
`version`, with `--server` and `--api-key` (or `STACYVM_API_KEY`). Its `worker` holds sandboxes and takes no tasks from queues
unless `worker.operators` has commands. In the profile a worker can get its tokens with a key of an admin:
`--bootstrap-admin-key-file FILE`, `--bootstrap-admin-key KEY` or `STACYVM_WORKER_BOOTSTRAP_ADMIN_KEY`.

Nothing else changes. `tenure config lint` reports that the profile is on, and why.
";

/// The whole page.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for (section, meaning) in keys::sections() {
        text += &format!("\n## `{section}`\n\n{meaning}\n\n");
        text += "| Key | Type | Default | Change | Variable | Meaning |\n|---|---|---|---|---|---|\n";
        let prefix = format!("{section}.");
        keys::all()
            .filter(|key| key.path == section || key.path.starts_with(&prefix))
            .for_each(|key| text += &row(key));
    }
    text + TAIL
}

fn row(key: &Key) -> String {
    let default = match key.kind.shape() {
        Shape::Text if key.default.is_empty() => String::new(),
        _ => format!("`{}`", written(key).trim_matches('"')),
    };
    let change = match key.change {
        Change::Reload => "reload",
        Change::Restart => "restart",
    };
    let variable = env::name_of(key.path);
    format!("| `{}` | {} | {default} | {change} | `{variable}` | {} |\n", key.path, key.kind.name(), key.doc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_contract::duration;

    #[test]
    fn the_page_is_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
        let page = reference();
        if std::env::var_os("TENURE_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(checked_in == page, "docs/CONFIGURATION.md is not up to date: run this test with TENURE_BLESS=1");
    }

    #[test]
    fn every_key_has_a_row() {
        let page = reference().replace(TAIL, "");
        for key in keys::all() {
            assert_eq!(page.matches(&format!("\n| `{}` |", key.path)).count(), 1, "{}", key.path);
        }
    }

    #[test]
    fn the_defaults_of_the_profile_are_listed() {
        let given = crate::compat::defaults();
        for given in &given {
            assert!(TAIL.contains(&format!("| `{}` |", given.key.path)), "{}", given.key.path);
        }
        assert_eq!(TAIL.matches("\n| `").count(), given.len());
    }

    #[test]
    fn defaults_are_durations_where_they_should_be() {
        for key in keys::all().filter(|key| key.kind == keys::Kind::Duration) {
            assert!(duration::parse(key.default).is_some(), "{}", key.path);
        }
    }
}
