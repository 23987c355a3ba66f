//! What is kept about callers.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_core::TaskId;
use tenure_core::tenant::TenantUsage;
use tenure_core::time::Timestamp;

use super::{Sqlite, sql};
use crate::error::StoreError;
use crate::identity::{
    AdminAudit, AdminAuditFilter, AdminAuditRow, ApiKey, AuditCut, CredentialGrant, CredentialGrantRow, IdentityStore,
    MEMBERS_MAX, MemberRow, NewApiKey, OperationAudit, OperationAuditFilter, OperationAuditRow, PROVEN_WORKERS_MAX,
    QueryAudit, QueryAuditRow, TENANTS_MAX, TenantRecord, TenantRow, asker_columns, asker_of, key_is_taken, names_json,
    names_of, page, task_keys_since, without_nul, without_nul_if,
};
use crate::model::Page;

type Result<T> = std::result::Result<T, StoreError>;

fn time_if(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    row.get::<_, Option<i64>>(column).map(|millis| millis.map(Timestamp::from_millis))
}

fn api_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    Ok(ApiKey {
        key_id: row.get(0)?,
        name: row.get(1)?,
        role: row.get(2)?,
        tenant: row.get(3)?,
        owner: row.get(4)?,
        created_at: Timestamp::from_millis(row.get(5)?),
        created_by: row.get(6)?,
        expires_at: time_if(row, 7)?,
        revoked_at: time_if(row, 8)?,
    })
}

fn admin_row(row: &Row<'_>) -> rusqlite::Result<AdminAuditRow> {
    let entry = AdminAudit {
        actor: row.get(2)?,
        method: row.get(3)?,
        path: row.get(4)?,
        status: row.get(5)?,
        duration_ms: row.get(6)?,
        request_id: row.get(7)?,
        remote_addr: row.get(8)?,
        user_agent: row.get(9)?,
        tenant: row.get(10)?,
    };
    Ok(AdminAuditRow { id: row.get(0)?, at: Timestamp::from_millis(row.get(1)?), entry })
}

fn operation_row(row: &Row<'_>) -> rusqlite::Result<OperationAuditRow> {
    let entry = OperationAudit {
        actor: row.get(2)?,
        action: row.get(3)?,
        sandbox: row.get(9)?,
        resource: row.get(4)?,
        status: row.get(5)?,
        detail: row.get(6)?,
        tenant: row.get(7)?,
        request_id: row.get(8)?,
    };
    let at = Timestamp::from_millis(row.get(1)?);
    Ok(OperationAuditRow { id: row.get(0)?, at, provider: row.get(10)?, entry })
}

fn query_audit_row(row: &Row<'_>) -> rusqlite::Result<QueryAuditRow> {
    let entry = QueryAudit {
        query_id: row.get(1)?,
        org: row.get(2)?,
        asker: asker_of(row.get(3)?, row.get(4)?, row.get(5)?),
        datasets: names_of(&row.get::<_, String>(6)?),
        columns: names_of(&row.get::<_, String>(7)?),
        row_count: row.get::<_, i64>(8)?.unsigned_abs(),
        sql_hash: row.get(9)?,
        export: row.get(10)?,
    };
    Ok(QueryAuditRow { at: Timestamp::from_millis(row.get(0)?), entry })
}

fn credential_row(row: &Row<'_>) -> rusqlite::Result<CredentialGrantRow> {
    let grant = CredentialGrant {
        org: row.get(2)?,
        task: TaskId::from_u128(u128::from_be_bytes(row.get(3)?)),
        attempt: row.get(4)?,
        backend: row.get(5)?,
        access_key_id: row.get(6)?,
        purpose: row.get(7)?,
        scope: row.get(8)?,
        expires_at: Timestamp::from_millis(row.get(9)?),
        request_id: row.get(10)?,
    };
    Ok(CredentialGrantRow { id: row.get(0)?, at: Timestamp::from_millis(row.get(1)?), grant })
}

fn tenant_row(row: &Row<'_>) -> rusqlite::Result<TenantRow> {
    let record = TenantRecord { id: row.get(0)?, name: row.get(1)?, owner: row.get(2)?, settings: row.get(3)? };
    let (created_at, updated_at) = (Timestamp::from_millis(row.get(4)?), Timestamp::from_millis(row.get(5)?));
    Ok(TenantRow { record, created_at, updated_at })
}

fn member_row(row: &Row<'_>) -> rusqlite::Result<MemberRow> {
    let created_at = Timestamp::from_millis(row.get(2)?);
    Ok(MemberRow { user_id: row.get(0)?, role: row.get(1)?, created_at })
}

fn key_of_hash(tx: &Connection, hash: &[u8; 32]) -> rusqlite::Result<Option<ApiKey>> {
    tx.prepare_cached(sql::API_KEY_OF_HASH)?.query_row([hash], api_key).optional()
}

impl Sqlite {
    async fn store_tenant(
        &self,
        operation: &'static str,
        statement: &'static str,
        record: &TenantRecord,
    ) -> Result<bool> {
        let (record, now) = (record.clone(), self.millis());
        self.write(operation, move |tx| {
            let TenantRecord { id, name, owner, settings } = record;
            let params = params![id, name, owner, settings, now, TENANTS_MAX as i64];
            Ok(tx.prepare_cached(statement)?.execute(params)? > 0)
        })
        .await
    }

    pub(super) fn millis(&self) -> i64 {
        self.clock.read_process().now.as_millis()
    }
}

#[async_trait]
impl IdentityStore for Sqlite {
    async fn create_api_key(&self, key: &NewApiKey) -> Result<ApiKey> {
        let (new, now) = (key.clone(), self.millis());
        let stored = self.write("create an API key", move |tx| {
            tx.prepare_cached(sql::API_KEY_INSERT)?.execute(params![
                new.key_id,
                new.hash,
                new.name,
                new.role,
                new.tenant,
                new.owner,
                now,
                new.created_by,
                new.expires_at.map(Timestamp::as_millis),
            ])?;
            key_of_hash(tx, &new.hash)
        });
        stored.await?.filter(|stored| stored.key_id == key.key_id).ok_or_else(key_is_taken)
    }

    async fn api_keys(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Result<Page<ApiKey>> {
        let (tenant, after) = (tenant.map(ToOwned::to_owned), after.unwrap_or_default().to_owned());
        let found = self.read("list API keys", move |tx| {
            let mut statement = tx.prepare_cached(sql::API_KEYS_LIST)?;
            statement.query_map(params![after, tenant, limit as i64 + 1], api_key)?.collect()
        });
        Ok(page(found.await?, limit, |key: &ApiKey| key.key_id.clone()))
    }

    async fn api_key(&self, key_id: &str, tenant: Option<&str>) -> Result<Option<ApiKey>> {
        let (key_id, tenant) = (key_id.to_owned(), tenant.map(ToOwned::to_owned));
        self.read("read an API key", move |tx| {
            tx.prepare_cached(sql::API_KEY_GET)?.query_row(params![key_id, tenant], api_key).optional()
        })
        .await
    }

    async fn api_key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<ApiKey>> {
        let hash = *hash;
        self.read("read an API key", move |tx| key_of_hash(tx, &hash)).await
    }

    async fn revoke_api_key(&self, key_id: &str, tenant: Option<&str>) -> Result<Option<ApiKey>> {
        let (key_id, tenant, now) = (key_id.to_owned(), tenant.map(ToOwned::to_owned), self.millis());
        self.write("revoke an API key", move |tx| {
            tx.prepare_cached(sql::API_KEY_REVOKE)?.query_row(params![key_id, tenant, now], api_key).optional()
        })
        .await
    }

    async fn revoke_worker_token(&self, token_id: &str, until: Timestamp, by: &str) -> Result<()> {
        let (token_id, by, now) = (token_id.to_owned(), by.to_owned(), self.millis());
        self.write("revoke a worker token", move |tx| {
            let mut statement = tx.prepare_cached(sql::WORKER_REVOCATION_PUT)?;
            statement.execute(params![token_id, until.as_millis(), now, by]).map(drop)
        })
        .await
    }

    async fn revoked_worker_tokens(&self) -> Result<Vec<String>> {
        let now = self.millis();
        self.read("read revoked worker tokens", move |tx| {
            tx.prepare_cached(sql::WORKER_REVOCATIONS_LIVE)?.query_map([now], |row| row.get(0))?.collect()
        })
        .await
    }

    async fn prove_workers(&self, workers: &[String], until: Timestamp) -> Result<()> {
        let workers = workers.to_vec();
        self.write("note proven workers", move |tx| {
            let mut put = tx.prepare_cached(sql::PROVEN_WORKERS_PUT)?;
            for worker in &workers {
                put.execute(params![worker, until.as_millis()])?;
            }
            Ok(())
        })
        .await
    }

    async fn proven_workers(&self, after: Timestamp) -> Result<Vec<(String, Timestamp)>> {
        self.read("read proven workers", move |tx| {
            let row = |row: &Row<'_>| Ok((row.get(0)?, Timestamp::from_millis(row.get(1)?)));
            let mut statement = tx.prepare_cached(sql::PROVEN_WORKERS_AFTER)?;
            statement.query_map([after.as_millis(), PROVEN_WORKERS_MAX as i64], row)?.collect()
        })
        .await
    }

    async fn shared_secret(&self, name: &str, candidate: &str) -> Result<String> {
        let (name, candidate, now) = (name.to_owned(), candidate.to_owned(), self.millis());
        self.write("share a secret", move |tx| {
            tx.prepare_cached(sql::SHARED_SECRET)?.query_row(params![name, candidate, now], |row| row.get(0))
        })
        .await
    }

    async fn register_task_key(&self, kid: &str, jwk: &str) -> Result<()> {
        let (kid, jwk, now) = (kid.to_owned(), jwk.to_owned(), self.millis());
        self.write("register a task key", move |tx| {
            tx.prepare_cached(sql::TASK_KEY_PUT)?.execute(params![kid, jwk, now]).map(drop)
        })
        .await
    }

    async fn forget_task_key(&self, kid: &str) -> Result<bool> {
        let kid = kid.to_owned();
        self.write("forget a task key", move |tx| Ok(tx.prepare_cached(sql::TASK_KEY_DELETE)?.execute([kid])? > 0))
            .await
    }

    async fn task_keys(&self) -> Result<Vec<(String, String)>> {
        let since = task_keys_since(self.clock.read_process().now).as_millis();
        self.read("read task keys", move |tx| {
            let mut statement = tx.prepare_cached(sql::TASK_KEYS_LIVE)?;
            statement.query_map([since], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .await
    }

    async fn audit_admin(&self, entries: &[AdminAudit]) -> Result<()> {
        let (entries, now) = (entries.to_vec(), self.millis());
        self.write("record requests of admins", move |tx| {
            let mut statement = tx.prepare_cached(sql::ADMIN_AUDIT_INSERT)?;
            for entry in &entries {
                statement.execute(params![
                    now,
                    without_nul(&entry.actor),
                    without_nul(&entry.method),
                    without_nul(&entry.path),
                    entry.status,
                    entry.duration_ms,
                    without_nul(&entry.request_id),
                    without_nul(&entry.remote_addr),
                    without_nul_if(entry.user_agent.as_ref()),
                    without_nul_if(entry.tenant.as_ref()),
                ])?;
            }
            Ok(())
        })
        .await
    }

    async fn admin_audit(&self, filter: &AdminAuditFilter) -> Result<Page<AdminAuditRow>> {
        let (filter, limit) = (filter.clone(), filter.limit);
        let found = self.read("list requests of admins", move |tx| {
            let params = params![
                filter.before.unwrap_or(i64::MAX),
                filter.actor,
                filter.method,
                filter.status,
                filter.path,
                filter.tenant,
                limit as i64 + 1,
            ];
            tx.prepare_cached(sql::ADMIN_AUDIT_LIST)?.query_map(params, admin_row)?.collect()
        });
        Ok(page(found.await?, limit, |row: &AdminAuditRow| row.id.to_string()))
    }

    async fn audit_operations(&self, entries: &[OperationAudit]) -> Result<()> {
        let (entries, now) = (entries.to_vec(), self.millis());
        self.write("record operations", move |tx| {
            let mut statement = tx.prepare_cached(sql::OPERATION_AUDIT_INSERT)?;
            for entry in &entries {
                statement.execute(params![
                    now,
                    without_nul(&entry.actor),
                    without_nul(&entry.action),
                    without_nul_if(entry.sandbox.as_ref()),
                    without_nul(&entry.resource),
                    without_nul(&entry.status),
                    without_nul_if(entry.detail.as_ref()),
                    without_nul_if(entry.tenant.as_ref()),
                    without_nul_if(entry.request_id.as_ref()),
                ])?;
            }
            Ok(())
        })
        .await
    }

    async fn operation_audit(&self, filter: &OperationAuditFilter) -> Result<Page<OperationAuditRow>> {
        let (filter, limit) = (filter.clone(), filter.limit);
        let found = self.read("list operations", move |tx| {
            let before = filter.before.unwrap_or(i64::MAX);
            let params = params![before, filter.action, filter.actor, filter.tenant, limit as i64 + 1];
            tx.prepare_cached(sql::OPERATION_AUDIT_LIST)?.query_map(params, operation_row)?.collect()
        });
        Ok(page(found.await?, limit, |row: &OperationAuditRow| row.id.to_string()))
    }

    async fn audit_query(&self, entry: &QueryAudit) -> Result<()> {
        let (entry, now) = (entry.clone(), self.millis());
        self.write("record a query", move |tx| {
            let (actor, task, attempt) = asker_columns(&entry.asker);
            tx.prepare_cached(sql::QUERY_AUDIT_INSERT)?
                .execute(params![
                    now,
                    entry.query_id,
                    entry.org,
                    without_nul_if(actor.as_ref()),
                    task,
                    attempt,
                    names_json(&entry.datasets),
                    names_json(&entry.columns),
                    i64::try_from(entry.row_count).unwrap_or(i64::MAX),
                    entry.sql_hash,
                    entry.export,
                ])
                .map(drop)
        })
        .await
    }

    async fn audit_credentials(&self, grant: &CredentialGrant) -> Result<()> {
        let (grant, now) = (grant.clone(), self.millis());
        self.write("record temporary keys", move |tx| {
            tx.prepare_cached(sql::CREDENTIAL_GRANTS_INSERT)?.execute(params![
                now,
                without_nul(&grant.org),
                grant.task.as_u128().to_be_bytes(),
                grant.attempt,
                grant.backend,
                grant.access_key_id,
                without_nul(&grant.purpose),
                grant.scope,
                grant.expires_at.as_millis(),
                without_nul(&grant.request_id),
            ])?;
            Ok(())
        })
        .await
    }

    async fn query_audit(&self, query_id: &str) -> Result<Option<QueryAuditRow>> {
        let query_id = query_id.to_owned();
        self.read("read the record of a query", move |tx| {
            tx.prepare_cached(sql::QUERY_AUDIT_GET)?.query_row([query_id], query_audit_row).optional()
        })
        .await
    }

    async fn credential_grants(&self, task: TaskId, limit: usize) -> Result<Vec<CredentialGrantRow>> {
        self.read("list temporary keys", move |tx| {
            let params = params![task.as_u128().to_be_bytes(), limit as i64];
            tx.prepare_cached(sql::CREDENTIAL_GRANTS_OF_TASK)?.query_map(params, credential_row)?.collect()
        })
        .await
    }

    async fn prune_identity(&self, audit: AuditCut, limit: usize) -> Result<usize> {
        let now = self.clock.read_process().now;
        self.write("prune audit rows and old keys", move |tx| {
            let mut removed = 0;
            let mut remove = |statement: &str, before: Timestamp| {
                removed += tx.prepare_cached(statement)?.execute([before.as_millis(), limit as i64])?;
                Ok::<(), rusqlite::Error>(())
            };
            if let Some(before) = audit.admin_before {
                remove(sql::ADMIN_AUDIT_PRUNE, before)?;
            }
            if let Some(before) = audit.operations_before {
                remove(sql::OPERATION_AUDIT_PRUNE, before)?;
                remove(sql::QUERY_AUDIT_PRUNE, before)?;
                remove(sql::CREDENTIAL_GRANTS_PRUNE, before)?;
            }
            remove(sql::WORKER_REVOCATIONS_PRUNE, now)?;
            remove(sql::PROVEN_WORKERS_PRUNE, now)?;
            remove(sql::TASK_KEYS_PRUNE, task_keys_since(now))?;
            Ok(removed)
        })
        .await
    }

    async fn set_tenant_limits(&self, tenant: &str, limits: Option<&str>) -> Result<()> {
        let (tenant, limits, now) = (tenant.to_owned(), limits.map(ToOwned::to_owned), self.millis());
        self.write("set the limits of a tenant", move |tx| match limits {
            Some(limits) => tx.prepare_cached(sql::TENANT_LIMITS_PUT)?.execute(params![tenant, limits, now]).map(drop),
            None => tx.prepare_cached(sql::TENANT_LIMITS_DELETE)?.execute([tenant]).map(drop),
        })
        .await
    }

    async fn tenant_limits(&self) -> Result<Vec<(String, String)>> {
        self.read("read the limits of tenants", |tx| {
            let mut statement = tx.prepare_cached(sql::TENANT_LIMITS_ALL)?;
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .await
    }

    async fn create_tenant(&self, record: &TenantRecord) -> Result<bool> {
        self.store_tenant("create a tenant", sql::TENANT_INSERT, record).await
    }

    async fn put_tenant(&self, record: &TenantRecord) -> Result<bool> {
        self.store_tenant("set a tenant", sql::TENANT_PUT, record).await
    }

    async fn tenant(&self, id: &str) -> Result<Option<TenantRow>> {
        let id = id.to_owned();
        self.read("read a tenant", move |tx| tx.prepare_cached(sql::TENANT_GET)?.query_row([id], tenant_row).optional())
            .await
    }

    async fn tenants(&self) -> Result<Vec<TenantRow>> {
        self.read("list tenants", |tx| tx.prepare_cached(sql::TENANTS_LIST)?.query_map([], tenant_row)?.collect()).await
    }

    async fn delete_tenant(&self, id: &str) -> Result<bool> {
        let id = id.to_owned();
        self.write("delete a tenant", move |tx| {
            tx.prepare_cached(sql::TENANT_MEMBERS_DELETE)?.execute([&id])?;
            Ok(tx.prepare_cached(sql::TENANT_DELETE)?.execute([&id])? > 0)
        })
        .await
    }

    async fn put_member(&self, tenant: &str, user_id: &str, role: &str) -> Result<Option<MemberRow>> {
        let (tenant, user_id, role, now) = (tenant.to_owned(), user_id.to_owned(), role.to_owned(), self.millis());
        self.write("set a member", move |tx| {
            let params = params![tenant, user_id, role, now, MEMBERS_MAX as i64];
            tx.prepare_cached(sql::TENANT_MEMBER_PUT)?.query_row(params, member_row).optional()
        })
        .await
    }

    async fn members(&self, tenant: &str) -> Result<Vec<MemberRow>> {
        let tenant = tenant.to_owned();
        self.read("list members", move |tx| {
            tx.prepare_cached(sql::TENANT_MEMBERS_LIST)?.query_map([tenant], member_row)?.collect()
        })
        .await
    }

    async fn delete_member(&self, tenant: &str, user_id: &str) -> Result<bool> {
        let (tenant, user_id) = (tenant.to_owned(), user_id.to_owned());
        self.write("remove a member", move |tx| {
            Ok(tx.prepare_cached(sql::TENANT_MEMBER_DELETE)?.execute([tenant, user_id])? > 0)
        })
        .await
    }

    async fn tenant_usage(&self, tenant: &str) -> Result<TenantUsage> {
        let tenant = tenant.to_owned();
        self.read("count the tasks of a tenant", move |tx| {
            tx.prepare_cached(sql::TENANT_USAGE)?.query_row([tenant], |row| {
                let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
                Ok(TenantUsage {
                    ready: number(0)?,
                    scheduled: number(1)?,
                    running: number(2)?,
                    payload_bytes: number(3)?,
                })
            })
        })
        .await
    }
}
