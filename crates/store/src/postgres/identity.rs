//! What is kept about callers.

use async_trait::async_trait;
use tenure_core::tenant::TenantUsage;
use tenure_core::{TaskId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::conn::{Conn, failed};
use super::load::query;
use super::rows::{self, Time};
use super::{Postgres, sql};
use crate::error::StoreError;
use crate::identity::{
    AdminAudit, AdminAuditFilter, AdminAuditRow, ApiKey, AuditCut, CredentialGrant, CredentialGrantRow, IdentityStore,
    MEMBERS_MAX, MemberRow, NewApiKey, OperationAudit, OperationAuditFilter, OperationAuditRow, PROVEN_WORKERS_MAX,
    QueryAudit, QueryAuditRow, TENANTS_MAX, TenantRecord, TenantRow, asker_columns, asker_of, key_is_taken, names_json,
    names_of, page, task_keys_since, without_nul, without_nul_if,
};
use crate::model::Page;

type Result<T> = std::result::Result<T, StoreError>;
type Params<'a> = [&'a (dyn ToSql + Sync)];

fn api_key(row: &Row) -> rows::Result<ApiKey> {
    Ok(ApiKey {
        key_id: row.try_get(0)?,
        name: row.try_get(1)?,
        role: row.try_get(2)?,
        tenant: row.try_get(3)?,
        owner: row.try_get(4)?,
        created_at: rows::time(row, 5)?,
        created_by: row.try_get(6)?,
        expires_at: rows::time_if(row, 7)?,
        revoked_at: rows::time_if(row, 8)?,
    })
}

fn admin_row(row: &Row) -> rows::Result<AdminAuditRow> {
    let status: i32 = row.try_get(5)?;
    let entry = AdminAudit {
        actor: row.try_get(2)?,
        method: row.try_get(3)?,
        path: row.try_get(4)?,
        status: u16::try_from(status).unwrap_or(0),
        duration_ms: row.try_get(6)?,
        request_id: row.try_get(7)?,
        remote_addr: row.try_get(8)?,
        user_agent: row.try_get(9)?,
        tenant: row.try_get(10)?,
    };
    Ok(AdminAuditRow { id: row.try_get(0)?, at: rows::time(row, 1)?, entry })
}

fn operation_row(row: &Row) -> rows::Result<OperationAuditRow> {
    let entry = OperationAudit {
        actor: row.try_get(2)?,
        action: row.try_get(3)?,
        sandbox: row.try_get(9)?,
        resource: row.try_get(4)?,
        status: row.try_get(5)?,
        detail: row.try_get(6)?,
        tenant: row.try_get(7)?,
        request_id: row.try_get(8)?,
    };
    Ok(OperationAuditRow { id: row.try_get(0)?, at: rows::time(row, 1)?, provider: row.try_get(10)?, entry })
}

fn query_audit_row(row: &Row) -> rows::Result<QueryAuditRow> {
    let entry = QueryAudit {
        query_id: row.try_get(1)?,
        org: row.try_get(2)?,
        asker: asker_of(row.try_get(3)?, row.try_get(4)?, row.try_get(5)?),
        datasets: names_of(row.try_get(6)?),
        columns: names_of(row.try_get(7)?),
        row_count: row.try_get::<_, i64>(8)?.unsigned_abs(),
        sql_hash: row.try_get(9)?,
        export: row.try_get(10)?,
    };
    Ok(QueryAuditRow { at: rows::time(row, 0)?, entry })
}

fn credential_row(row: &Row) -> rows::Result<CredentialGrantRow> {
    let (task, attempt): (Uuid, i32) = (row.try_get(3)?, row.try_get(4)?);
    let grant = CredentialGrant {
        org: row.try_get(2)?,
        task: TaskId::from_u128(task.as_u128()),
        attempt: u32::try_from(attempt).unwrap_or(0),
        backend: row.try_get(5)?,
        access_key_id: row.try_get(6)?,
        purpose: row.try_get(7)?,
        scope: row.try_get(8)?,
        expires_at: rows::time(row, 9)?,
        request_id: row.try_get(10)?,
    };
    Ok(CredentialGrantRow { id: row.try_get(0)?, at: rows::time(row, 1)?, grant })
}

fn tenant_row(row: &Row) -> rows::Result<TenantRow> {
    let (id, name, owner) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let record = TenantRecord { id, name, owner, settings: row.try_get(3)? };
    Ok(TenantRow { record, created_at: rows::time(row, 4)?, updated_at: rows::time(row, 5)? })
}

fn member_row(row: &Row) -> rows::Result<MemberRow> {
    Ok(MemberRow { user_id: row.try_get(0)?, role: row.try_get(1)?, created_at: rows::time(row, 2)? })
}

fn pair(row: &Row) -> rows::Result<(String, String)> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}

impl Postgres {
    async fn store_tenant(&self, operation: &'static str, statement: &str, record: &TenantRecord) -> Result<bool> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let TenantRecord { id, name, owner, settings } = record;
        let params: [&(dyn ToSql + Sync); 6] = [id, name, owner, settings, &now, &(TENANTS_MAX as i64)];
        Ok(!self.write_one(operation, conn, statement, &params).await?.is_empty())
    }

    /// One statement that writes, by itself a transaction.
    pub(super) async fn write_one(
        &self,
        operation: &'static str,
        conn: Conn,
        sql: &str,
        params: &Params<'_>,
    ) -> Result<Vec<Row>> {
        self.faults.before(operation)?;
        let found = query(&conn, sql, params).await.map_err(|error| failed(operation, error))?;
        conn.give_back();
        self.faults.after(operation)?;
        Ok(found)
    }

    /// One statement that reads.
    pub(super) async fn read_all<T>(
        &self,
        operation: &'static str,
        conn: Conn,
        sql: &str,
        params: &Params<'_>,
        read: impl Fn(&Row) -> rows::Result<T>,
    ) -> Result<Vec<T>> {
        let fail = |error| failed(operation, error);
        let found = query(&conn, sql, params).await.map_err(fail)?;
        conn.give_back();
        found.iter().map(read).collect::<rows::Result<_>>().map_err(fail)
    }
}

#[async_trait]
impl IdentityStore for Postgres {
    async fn create_api_key(&self, key: &NewApiKey) -> Result<ApiKey> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let hash = key.hash.as_slice();
        let expires_at = key.expires_at.map(Time);
        let params: [&(dyn ToSql + Sync); 9] =
            [&key.key_id, &hash, &key.name, &key.role, &key.tenant, &key.owner, &now, &key.created_by, &expires_at];
        self.write_one("create an API key", conn, sql::API_KEY_INSERT, &params).await?;
        let stored = self.api_key_by_hash(&key.hash).await?;
        stored.filter(|stored| stored.key_id == key.key_id).ok_or_else(key_is_taken)
    }

    async fn api_keys(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Result<Page<ApiKey>> {
        let conn = Conn::get(&self.read).await?;
        let params: [&(dyn ToSql + Sync); 3] = [&after.unwrap_or_default(), &tenant, &(limit as i64 + 1)];
        let found = self.read_all("list API keys", conn, sql::API_KEYS_LIST, &params, api_key).await?;
        Ok(page(found, limit, |key| key.key_id.clone()))
    }

    async fn api_key(&self, key_id: &str, tenant: Option<&str>) -> Result<Option<ApiKey>> {
        let conn = Conn::get(&self.read).await?;
        let mut found = self.read_all("read an API key", conn, sql::API_KEY_GET, &[&key_id, &tenant], api_key).await?;
        Ok(found.pop())
    }

    async fn api_key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<ApiKey>> {
        let conn = Conn::get(&self.read).await?;
        let params: [&(dyn ToSql + Sync); 1] = [&hash.as_slice()];
        let mut found = self.read_all("read an API key", conn, sql::API_KEY_OF_HASH, &params, api_key).await?;
        Ok(found.pop())
    }

    async fn revoke_api_key(&self, key_id: &str, tenant: Option<&str>) -> Result<Option<ApiKey>> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let operation = "revoke an API key";
        let found = self.write_one(operation, conn, sql::API_KEY_REVOKE, &[&key_id, &tenant, &now]).await?;
        found.first().map(api_key).transpose().map_err(|error| failed(operation, error))
    }

    async fn revoke_worker_token(&self, token_id: &str, until: Timestamp, by: &str) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let params: [&(dyn ToSql + Sync); 4] = [&token_id, &Time(until), &now, &by];
        self.write_one("revoke a worker token", conn, sql::WORKER_REVOCATION_PUT, &params).await.map(drop)
    }

    async fn revoked_worker_tokens(&self) -> Result<Vec<String>> {
        let conn = Conn::get(&self.read).await?;
        let now = Time(self.reading(&conn).await?);
        let operation = "read revoked worker tokens";
        self.read_all(operation, conn, sql::WORKER_REVOCATIONS_LIVE, &[&now], |row| row.try_get(0)).await
    }

    async fn prove_workers(&self, workers: &[String], until: Timestamp) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let params: [&(dyn ToSql + Sync); 2] = [&workers, &Time(until)];
        self.write_one("note proven workers", conn, sql::PROVEN_WORKERS_PUT, &params).await.map(drop)
    }

    async fn proven_workers(&self, after: Timestamp) -> Result<Vec<(String, Timestamp)>> {
        let conn = Conn::get(&self.read).await?;
        let params: [&(dyn ToSql + Sync); 2] = [&Time(after), &(PROVEN_WORKERS_MAX as i64)];
        let row = |row: &Row| Ok((row.try_get(0)?, rows::time(row, 1)?));
        self.read_all("read proven workers", conn, sql::PROVEN_WORKERS_AFTER, &params, row).await
    }

    async fn shared_secret(&self, name: &str, candidate: &str) -> Result<String> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let rows = self.write_one("share a secret", conn, sql::SHARED_SECRET, &[&name, &candidate, &now]).await?;
        Ok(rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or_else(|| candidate.to_owned()))
    }

    async fn register_task_key(&self, kid: &str, jwk: &str) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        self.write_one("register a task key", conn, sql::TASK_KEY_PUT, &[&kid, &jwk, &now]).await.map(drop)
    }

    async fn forget_task_key(&self, kid: &str) -> Result<bool> {
        let conn = Conn::get(&self.work).await?;
        let found = self.write_one("forget a task key", conn, sql::TASK_KEY_DELETE, &[&kid]).await?;
        Ok(!found.is_empty())
    }

    async fn task_keys(&self) -> Result<Vec<(String, String)>> {
        let conn = Conn::get(&self.read).await?;
        let since = Time(task_keys_since(self.reading(&conn).await?));
        self.read_all("read task keys", conn, sql::TASK_KEYS_LIVE, &[&since], pair).await
    }

    async fn audit_admin(&self, entries: &[AdminAudit]) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let text = |pick: fn(&AdminAudit) -> &String| entries.iter().map(|entry| without_nul(pick(entry))).collect();
        let text_if = |pick: fn(&AdminAudit) -> Option<&String>| {
            entries.iter().map(|entry| without_nul_if(pick(entry))).collect::<Vec<_>>()
        };
        let columns: [Vec<_>; 5] = [
            text(|entry| &entry.actor),
            text(|entry| &entry.method),
            text(|entry| &entry.path),
            text(|entry| &entry.request_id),
            text(|entry| &entry.remote_addr),
        ];
        let [actors, methods, paths, request_ids, remote_addrs] = columns;
        let statuses: Vec<i32> = entries.iter().map(|entry| i32::from(entry.status)).collect();
        let durations: Vec<i64> = entries.iter().map(|entry| entry.duration_ms).collect();
        let user_agents = text_if(|entry| entry.user_agent.as_ref());
        let tenants = text_if(|entry| entry.tenant.as_ref());
        let params: [&(dyn ToSql + Sync); 10] = [
            &now,
            &actors,
            &methods,
            &paths,
            &statuses,
            &durations,
            &request_ids,
            &remote_addrs,
            &user_agents,
            &tenants,
        ];
        self.write_one("record requests of admins", conn, sql::ADMIN_AUDIT_INSERT, &params).await.map(drop)
    }

    async fn admin_audit(&self, filter: &AdminAuditFilter) -> Result<Page<AdminAuditRow>> {
        let conn = Conn::get(&self.read).await?;
        let params: [&(dyn ToSql + Sync); 7] = [
            &filter.before.unwrap_or(i64::MAX),
            &filter.actor,
            &filter.method,
            &filter.status.map(i32::from),
            &filter.path,
            &filter.tenant,
            &(filter.limit as i64 + 1),
        ];
        let operation = "list requests of admins";
        let found = self.read_all(operation, conn, sql::ADMIN_AUDIT_LIST, &params, admin_row).await?;
        Ok(page(found, filter.limit, |row| row.id.to_string()))
    }

    async fn audit_operations(&self, entries: &[OperationAudit]) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let text = |pick: fn(&OperationAudit) -> &String| {
            entries.iter().map(|entry| without_nul(pick(entry))).collect::<Vec<_>>()
        };
        let text_if = |pick: fn(&OperationAudit) -> Option<&String>| {
            entries.iter().map(|entry| without_nul_if(pick(entry))).collect::<Vec<_>>()
        };
        let params: [&(dyn ToSql + Sync); 9] = [
            &now,
            &text(|entry| &entry.actor),
            &text(|entry| &entry.action),
            &text_if(|entry| entry.sandbox.as_ref()),
            &text(|entry| &entry.resource),
            &text(|entry| &entry.status),
            &text_if(|entry| entry.detail.as_ref()),
            &text_if(|entry| entry.tenant.as_ref()),
            &text_if(|entry| entry.request_id.as_ref()),
        ];
        self.write_one("record operations", conn, sql::OPERATION_AUDIT_INSERT, &params).await.map(drop)
    }

    async fn operation_audit(&self, filter: &OperationAuditFilter) -> Result<Page<OperationAuditRow>> {
        let conn = Conn::get(&self.read).await?;
        let params: [&(dyn ToSql + Sync); 5] = [
            &filter.before.unwrap_or(i64::MAX),
            &filter.action,
            &filter.actor,
            &filter.tenant,
            &(filter.limit as i64 + 1),
        ];
        let found = self.read_all("list operations", conn, sql::OPERATION_AUDIT_LIST, &params, operation_row).await?;
        Ok(page(found, filter.limit, |row| row.id.to_string()))
    }

    async fn audit_query(&self, entry: &QueryAudit) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let (actor, task, attempt) = asker_columns(&entry.asker);
        let params: [&(dyn ToSql + Sync); 11] = [
            &now,
            &entry.query_id,
            &entry.org,
            &without_nul_if(actor.as_ref()),
            &task,
            &attempt,
            &names_json(&entry.datasets),
            &names_json(&entry.columns),
            &i64::try_from(entry.row_count).unwrap_or(i64::MAX),
            &entry.sql_hash,
            &entry.export,
        ];
        self.write_one("record a query", conn, sql::QUERY_AUDIT_INSERT, &params).await.map(drop)
    }

    async fn query_audit(&self, query_id: &str) -> Result<Option<QueryAuditRow>> {
        let conn = Conn::get(&self.read).await?;
        let operation = "read the record of a query";
        let mut found = self.read_all(operation, conn, sql::QUERY_AUDIT_GET, &[&query_id], query_audit_row).await?;
        Ok(found.pop())
    }

    async fn audit_credentials(&self, grant: &CredentialGrant) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let params: [&(dyn ToSql + Sync); 10] = [
            &now,
            &without_nul(&grant.org),
            &Uuid::from_u128(grant.task.as_u128()),
            &i32::try_from(grant.attempt).unwrap_or(i32::MAX),
            &grant.backend,
            &grant.access_key_id,
            &without_nul(&grant.purpose),
            &grant.scope,
            &Time(grant.expires_at),
            &without_nul(&grant.request_id),
        ];
        self.write_one("record temporary keys", conn, sql::CREDENTIAL_GRANTS_INSERT, &params).await.map(drop)
    }

    async fn credential_grants(&self, task: TaskId, limit: usize) -> Result<Vec<CredentialGrantRow>> {
        let conn = Conn::get(&self.read).await?;
        let params: [&(dyn ToSql + Sync); 2] = [&Uuid::from_u128(task.as_u128()), &(limit as i64)];
        self.read_all("list temporary keys", conn, sql::CREDENTIAL_GRANTS_OF_TASK, &params, credential_row).await
    }

    async fn prune_identity(&self, audit: AuditCut, limit: usize) -> Result<usize> {
        let conn = Conn::get(&self.work).await?;
        let now = self.reading(&conn).await?;
        let operation = "prune audit rows and old keys";
        self.faults.before(operation)?;
        let mut steps = vec![
            (sql::WORKER_REVOCATIONS_PRUNE, now),
            (sql::PROVEN_WORKERS_PRUNE, now),
            (sql::TASK_KEYS_PRUNE, task_keys_since(now)),
        ];
        steps.extend(audit.admin_before.map(|before| (sql::ADMIN_AUDIT_PRUNE, before)));
        steps.extend(audit.operations_before.map(|before| (sql::OPERATION_AUDIT_PRUNE, before)));
        steps.extend(audit.operations_before.map(|before| (sql::QUERY_AUDIT_PRUNE, before)));
        steps.extend(audit.operations_before.map(|before| (sql::CREDENTIAL_GRANTS_PRUNE, before)));
        let prune = async {
            let mut removed = 0;
            conn.batch_execute("BEGIN").await?;
            for (statement, before) in steps {
                removed += query(&conn, statement, &[&Time(before), &(limit as i64)]).await?.len();
            }
            conn.batch_execute("COMMIT").await?;
            Ok(removed)
        };
        let removed = prune.await.map_err(|error| failed(operation, error))?;
        conn.give_back();
        self.faults.after(operation)?;
        Ok(removed)
    }

    async fn set_tenant_limits(&self, tenant: &str, limits: Option<&str>) -> Result<()> {
        let conn = Conn::get(&self.work).await?;
        let operation = "set the limits of a tenant";
        let Some(limits) = limits else {
            return self.write_one(operation, conn, sql::TENANT_LIMITS_DELETE, &[&tenant]).await.map(drop);
        };
        let now = Time(self.reading(&conn).await?);
        self.write_one(operation, conn, sql::TENANT_LIMITS_PUT, &[&tenant, &limits, &now]).await.map(drop)
    }

    async fn tenant_limits(&self) -> Result<Vec<(String, String)>> {
        let conn = Conn::get(&self.read).await?;
        self.read_all("read the limits of tenants", conn, sql::TENANT_LIMITS_ALL, &[], pair).await
    }

    async fn create_tenant(&self, record: &TenantRecord) -> Result<bool> {
        self.store_tenant("create a tenant", sql::TENANT_INSERT, record).await
    }

    async fn put_tenant(&self, record: &TenantRecord) -> Result<bool> {
        self.store_tenant("set a tenant", sql::TENANT_PUT, record).await
    }

    async fn tenant(&self, id: &str) -> Result<Option<TenantRow>> {
        let conn = Conn::get(&self.read).await?;
        let found = self.read_all("read a tenant", conn, sql::TENANT_GET, &[&id], tenant_row).await?;
        Ok(found.into_iter().next())
    }

    async fn tenants(&self) -> Result<Vec<TenantRow>> {
        let conn = Conn::get(&self.read).await?;
        self.read_all("list tenants", conn, sql::TENANTS_LIST, &[], tenant_row).await
    }

    async fn delete_tenant(&self, id: &str) -> Result<bool> {
        let conn = Conn::get(&self.work).await?;
        Ok(!self.write_one("delete a tenant", conn, sql::TENANT_DELETE, &[&id]).await?.is_empty())
    }

    async fn put_member(&self, tenant: &str, user_id: &str, role: &str) -> Result<Option<MemberRow>> {
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let params: [&(dyn ToSql + Sync); 5] = [&tenant, &user_id, &role, &now, &(MEMBERS_MAX as i64)];
        let stored = self.write_one("set a member", conn, sql::TENANT_MEMBER_PUT, &params).await?;
        stored.first().map(member_row).transpose().map_err(|error| failed("set a member", error))
    }

    async fn members(&self, tenant: &str) -> Result<Vec<MemberRow>> {
        let conn = Conn::get(&self.read).await?;
        self.read_all("list members", conn, sql::TENANT_MEMBERS_LIST, &[&tenant], member_row).await
    }

    async fn delete_member(&self, tenant: &str, user_id: &str) -> Result<bool> {
        let conn = Conn::get(&self.work).await?;
        Ok(!self.write_one("remove a member", conn, sql::TENANT_MEMBER_DELETE, &[&tenant, &user_id]).await?.is_empty())
    }

    async fn tenant_usage(&self, tenant: &str) -> Result<TenantUsage> {
        let conn = Conn::get(&self.read).await?;
        let usage = |row: &Row| {
            let number = |column| row.try_get::<_, i64>(column).map(i64::unsigned_abs);
            Ok(TenantUsage { ready: number(0)?, scheduled: number(1)?, running: number(2)?, payload_bytes: number(3)? })
        };
        let found = self.read_all("count the tasks of a tenant", conn, sql::TENANT_USAGE, &[&tenant], usage).await?;
        Ok(found.into_iter().next().unwrap_or_default())
    }
}
