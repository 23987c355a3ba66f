use reqwest::Method;
use tenure_contract::sandboxes::{Template, TemplateSpawn, TemplateWrite};

use super::{CREATE_TIMEOUT, Sandbox, Sandboxes};
use crate::client::Call;
use crate::error::ClientError;

impl Sandboxes {
    pub async fn create_template(&self, template: &TemplateWrite) -> Result<Template, ClientError> {
        self.client.call(Call::new(Method::POST, self.client.url(&["templates"])).json(template)?).await
    }

    pub async fn templates(&self) -> Result<Vec<Template>, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["templates"]))).await
    }

    pub async fn template(&self, name: &str) -> Result<Template, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["templates", name]))).await
    }

    /// Replaces a template. Sandboxes that exist stay as they are.
    pub async fn set_template(&self, name: &str, template: &TemplateWrite) -> Result<Template, ClientError> {
        self.client.call(Call::new(Method::PUT, self.client.url(&["templates", name])).json(template)?).await
    }

    pub async fn delete_template(&self, name: &str) -> Result<(), ClientError> {
        self.client.answer(&Call::new(Method::DELETE, self.client.url(&["templates", name]))).await.map(drop)
    }

    /// Creates a sandbox of a template and waits until it runs.
    pub async fn create_from_template(&self, name: &str, spawn: &TemplateSpawn) -> Result<Sandbox, ClientError> {
        let url = self.client.url(&["templates", name, "spawn"]);
        let call = Call::new(Method::POST, url).json(spawn)?.header("idempotency-key", super::fresh_key()?);
        let info = self.client.call(call.timeout(CREATE_TIMEOUT)).await?;
        Ok(self.handle(info))
    }
}
