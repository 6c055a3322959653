use std::collections::HashMap;

use innkeeper_proto::inference::generate_reply::Reply;
use innkeeper_proto::inference::generate_request::Input;
use innkeeper_proto::inference::inference_client::InferenceClient;
use innkeeper_proto::inference::{FinishReason, GenerateReply, GenerateRequest, TokenLogprob, Usage};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_types::StatusExt;

use crate::cluster::Cluster;

impl Cluster {
    /// A gRPC connection to the router, at the port of its HTTP API.
    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.client.base().to_owned());
        let endpoint = endpoint.unwrap_or_else(|error| panic!("no address: {error}"));
        // Small, so that a client that reads nothing is soon felt.
        let channel = endpoint.initial_stream_window_size(1024).connect().await;
        channel.unwrap_or_else(|error| panic!("no gRPC connection: {error:?}"))
    }

    /// A client of the public gRPC service.
    pub async fn inference(&self) -> InferenceClient<Channel> {
        InferenceClient::new(self.channel().await)
    }
}

/// A greedy request that goes on to its maximum.
#[must_use]
pub fn generate(input: Input, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        model: "mock".to_owned(),
        input: Some(input),
        max_tokens: Some(max_tokens),
        temperature: Some(0.0),
        ignore_eos: Some(true),
        ..GenerateRequest::default()
    }
}

/// The same for a text.
#[must_use]
pub fn generate_text(prompt: impl Into<String>, max_tokens: u32) -> GenerateRequest {
    generate(Input::Prompt(prompt.into()), max_tokens)
}

/// A call under an id of the client's.
#[must_use]
pub fn call_as<T>(rid: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let id = rid.parse().unwrap_or_else(|error| panic!("{rid}: {error}"));
    request.metadata_mut().insert("x-request-id", id);
    request
}

/// What a call said in all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// The text of each choice.
    pub texts: Vec<String>,
    /// Their ids.
    pub ids: Vec<Vec<u32>>,
    /// Their logprobs.
    pub logprobs: Vec<Vec<TokenLogprob>>,
    /// Why each is over.
    pub finish: Vec<Option<FinishReason>>,
    /// The last message.
    pub usage: Option<Usage>,
    /// Messages.
    pub messages: usize,
}

impl Told {
    /// Adds a message.
    pub fn hear(&mut self, reply: GenerateReply) {
        assert!(self.usage.is_none(), "something came after the usage: {reply:?}");
        self.messages += 1;
        match reply.reply {
            Some(Reply::Delta(delta)) => {
                let at = self.place(delta.choice);
                assert!(self.finish[at].is_none(), "text after the end of choice {at}");
                self.texts[at] += &delta.text;
                self.ids[at].extend(delta.token_ids);
                self.logprobs[at].extend(delta.logprobs);
            }
            Some(Reply::Finish(finish)) => {
                let at = self.place(finish.choice);
                assert!(self.finish[at].is_none(), "choice {at} ends twice");
                self.finish[at] = Some(finish.reason());
            }
            Some(Reply::Usage(usage)) => self.usage = Some(usage),
            None => panic!("an empty message"),
        }
    }

    fn place(&mut self, choice: u32) -> usize {
        let at = choice as usize;
        let len = self.texts.len().max(at + 1);
        self.texts.resize(len, String::new());
        self.ids.resize(len, vec![]);
        self.logprobs.resize(len, vec![]);
        self.finish.resize(len, None);
        at
    }
}

/// All that a call says to its end.
///
/// # Errors
/// The status that it failed with.
pub async fn gather(mut stream: Streaming<GenerateReply>) -> Result<Told, Status> {
    let mut told = Told::default();
    while let Some(reply) = stream.message().await? {
        told.hear(reply);
    }
    assert!(told.usage.is_some(), "the stream ended without its usage: {told:?}");
    Ok(told)
}

/// The code of the HTTP API in a status: `error.code`; empty if it has none.
#[must_use]
pub fn reason(status: &Status) -> String {
    status
        .get_error_details()
        .error_info()
        .map_or_else(String::new, |info| {
            assert_eq!(info.domain, "innkeeper");
            info.reason.clone()
        })
}

/// What a status says beside its code: `param`, `room`, `attempts`, `blame`, `node`.
#[must_use]
pub fn told_of(status: &Status) -> HashMap<String, String> {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|info| info.metadata.clone())
        .unwrap_or_default()
}
