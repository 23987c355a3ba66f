//! The part of the user API for admins: keys, worker tokens, tenants, audit, outbox.

use reqwest::Method;
use tenure_contract::admin::{
    AdminAuditRow, ApiKey, CreatedApiKey, NewApiKey, OperationAuditRow, OutboxEntry, OutboxRetried, OutboxRetryRequest,
    Revocation, Revocations, Tenant, TenantBody, TenantLimits, TenantsBody, WhoAmI, WorkerToken, WorkerTokenRequest,
};
use tenure_contract::user::Page;

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::filter::{self, AdminAuditFilter, OperationAuditFilter, OutboxFilter};

impl Client {
    /// The identity of this client's credential.
    pub async fn whoami(&self) -> Result<WhoAmI, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["whoami"]))).await
    }

    /// Makes an API key. The key is in the answer and can be had from nowhere else.
    pub async fn create_api_key(&self, key: &NewApiKey) -> Result<CreatedApiKey, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["admin", "api-keys"])).json(key)?).await
    }

    /// One page of API keys, also of those that were revoked.
    pub async fn api_keys(&self, cursor: Option<String>) -> Result<Page<ApiKey>, ClientError> {
        let mut url = self.url(&["admin", "api-keys"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    pub async fn api_key(&self, id: &str) -> Result<ApiKey, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["admin", "api-keys", id]))).await
    }

    /// Ends a key for good. Ending it again changes nothing.
    pub async fn revoke_api_key(&self, id: &str) -> Result<ApiKey, ClientError> {
        self.call(Call::new(Method::DELETE, self.url(&["admin", "api-keys", id]))).await
    }

    /// Issues a signed worker token.
    pub async fn issue_worker_token(&self, request: &WorkerTokenRequest) -> Result<WorkerToken, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["admin", "worker-tokens"])).json(request)?.repeatable(true)).await
    }

    /// Ends a signed worker token before its time.
    pub async fn revoke_worker_token(&self, token_id: &str) -> Result<(), ClientError> {
        let call = Call::new(Method::POST, self.url(&["admin", "worker-tokens", "revocations"]));
        let call = call.json(&Revocation { token_id: token_id.to_owned() })?.repeatable(true);
        self.answer(&call).await.map(drop)
    }

    /// Ids of worker tokens that were revoked and would not have expired yet.
    pub async fn revoked_worker_tokens(&self) -> Result<Vec<String>, ClientError> {
        let call = Call::new(Method::GET, self.url(&["admin", "worker-tokens", "revocations"]));
        self.call(call).await.map(|Revocations { items }| items)
    }

    /// Tenants that have limits of their own.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, ClientError> {
        let call = Call::new(Method::GET, self.url(&["admin", "tenants"]));
        self.call(call).await.map(|TenantsBody { tenants }| tenants)
    }

    /// What a tenant has, and what it may have.
    pub async fn tenant(&self, name: &str) -> Result<Tenant, ClientError> {
        self.tenant_call(Call::new(Method::GET, self.url(&["admin", "tenants", name]))).await
    }

    /// Replaces the limits of a tenant; what is absent is as the configuration of the server says.
    pub async fn set_tenant(&self, name: &str, limits: &TenantLimits) -> Result<Tenant, ClientError> {
        self.tenant_call(Call::new(Method::PUT, self.url(&["admin", "tenants", name])).json(limits)?).await
    }

    /// Takes the limits of a tenant away.
    pub async fn unset_tenant(&self, name: &str) -> Result<Tenant, ClientError> {
        self.set_tenant(name, &TenantLimits::default()).await
    }

    /// Deletes the record, the members and the limits of a tenant. Its tasks and sandboxes stay.
    pub async fn delete_tenant(&self, name: &str) -> Result<(), ClientError> {
        self.answer(&Call::new(Method::DELETE, self.url(&["admin", "tenants", name]))).await.map(drop)
    }

    async fn tenant_call(&self, call: Call) -> Result<Tenant, ClientError> {
        self.call(call).await.map(|TenantBody { tenant }| tenant)
    }

    /// One page of what admins asked for, newest first.
    pub async fn admin_audit(&self, filter: &AdminAuditFilter) -> Result<Page<AdminAuditRow>, ClientError> {
        let mut url = self.url(&["admin", "audit"]);
        filter.write(&mut url);
        self.rows(url).await
    }

    /// The same page as CSV.
    pub async fn admin_audit_csv(&self, filter: &AdminAuditFilter) -> Result<CsvPage, ClientError> {
        let mut url = self.url(&["admin", "audit"]);
        filter.write(&mut url);
        self.csv(url).await
    }

    /// One page of what users changed, newest first.
    pub async fn operation_audit(&self, filter: &OperationAuditFilter) -> Result<Page<OperationAuditRow>, ClientError> {
        let mut url = self.url(&["audit"]);
        filter.write(&mut url);
        self.rows(url).await
    }

    /// The same page as CSV.
    pub async fn operation_audit_csv(&self, filter: &OperationAuditFilter) -> Result<CsvPage, ClientError> {
        let mut url = self.url(&["audit"]);
        filter.write(&mut url);
        self.csv(url).await
    }

    /// One page of wake-ups that leave the store, oldest first.
    pub async fn outbox(&self, filter: &OutboxFilter) -> Result<Page<OutboxEntry>, ClientError> {
        let mut url = self.url(&["admin", "outbox"]);
        filter.write(&mut url);
        self.call(Call::new(Method::GET, url)).await
    }

    /// Tries failed wake-ups again.
    pub async fn retry_outbox(&self, request: &OutboxRetryRequest) -> Result<OutboxRetried, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["admin", "outbox", "retry"])).json(request)?).await
    }

    /// A list that says in a header where it goes on.
    async fn rows<T: serde::de::DeserializeOwned>(&self, url: reqwest::Url) -> Result<Page<T>, ClientError> {
        let call = Call::new(Method::GET, url);
        let answer = self.answer(&call).await?;
        let items = serde_json::from_slice(&answer.body)
            .map_err(|source| ClientError::Decode { operation: call.operation(), source })?;
        Ok(Page { items, next_cursor: answer.next_cursor })
    }

    async fn csv(&self, mut url: reqwest::Url) -> Result<CsvPage, ClientError> {
        url.query_pairs_mut().append_pair("format", "csv");
        let answer = self.answer(&Call::new(Method::GET, url)).await?;
        Ok(CsvPage { text: String::from_utf8_lossy(&answer.body).into_owned(), next_cursor: answer.next_cursor })
    }
}

/// A page of a list as CSV, with a line of column names first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvPage {
    pub text: String,
    /// From `X-Next-Cursor`, if the server says it.
    pub next_cursor: Option<String>,
}
