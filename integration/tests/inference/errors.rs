//! What is wrong is a status with its code, its reason and its field; nothing is ignored.

use innkeeper_integration::rpc::{call_as, generate, generate_text, reason, told_of};
use innkeeper_integration::{Cluster, Options, oracle};
use innkeeper_proto::inference::generate_request::Input;
use innkeeper_proto::inference::{Chat, ChatMessage, GenerateRequest, TokenIds};
use prost::Message as _;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use crate::{SERVICE, ask, chat};

/// A contract with one field more.
#[derive(Clone, PartialEq, prost::Message)]
struct Newer {
    #[prost(message, optional, tag = "1000")]
    unknown: Option<TokenIds>,
}

#[tokio::test]
async fn what_is_wrong_is_a_status_with_its_code_and_its_field() {
    let cluster = Cluster::start(Options::mock().flag("context", 128).flag("kv-pages", 4)).await;
    let with = |change: fn(&mut GenerateRequest)| {
        let mut request = generate_text("Hello", 4);
        change(&mut request);
        request
    };
    for (request, code, said, param) in [
        (
            with(|it| it.model = "gpt".to_owned()),
            Code::NotFound,
            "model_not_found",
            "model",
        ),
        (
            with(|it| it.model.clear()),
            Code::InvalidArgument,
            "missing_required_parameter",
            "model",
        ),
        (
            with(|it| it.input = None),
            Code::InvalidArgument,
            "missing_required_parameter",
            "input",
        ),
        (
            with(|it| it.temperature = Some(2.5)),
            Code::InvalidArgument,
            "decimal_above_max_value",
            "temperature",
        ),
        (
            with(|it| it.temperature = Some(f64::NAN)),
            Code::InvalidArgument,
            "invalid_type",
            "temperature",
        ),
        (
            with(|it| it.max_tokens = Some(0)),
            Code::InvalidArgument,
            "integer_below_min_value",
            "max_tokens",
        ),
        (
            with(|it| it.n = Some(99)),
            Code::InvalidArgument,
            "integer_above_max_value",
            "n",
        ),
        (
            with(|it| it.top_logprobs = Some(6)),
            Code::InvalidArgument,
            "integer_above_max_value",
            "top_logprobs",
        ),
        (
            with(|it| it.stop = vec![String::new()]),
            Code::InvalidArgument,
            "invalid_value",
            "stop",
        ),
        (
            with(|it| it.max_tokens = Some(128)),
            Code::InvalidArgument,
            "context_length_exceeded",
            "prompt",
        ),
        (
            with(|it| it.input = Some(Input::PromptTokenIds(TokenIds { ids: vec![1, 1 << 30] }))),
            Code::InvalidArgument,
            "invalid_value",
            "prompt_token_ids[1]",
        ),
        (
            with(|it| it.input = Some(Input::Chat(Chat { messages: vec![] }))),
            Code::InvalidArgument,
            "empty_array",
            "chat.messages",
        ),
        (
            GenerateRequest {
                echo: Some(true),
                ..generate(chat("x"), 4)
            },
            Code::InvalidArgument,
            "unsupported_parameter",
            "echo",
        ),
        (
            with(|it| {
                it.input = Some(Input::Chat(Chat {
                    messages: vec![ChatMessage::default()],
                }))
            }),
            Code::InvalidArgument,
            "invalid_value",
            "chat.messages[0].role",
        ),
    ] {
        let status = ask(&cluster, request).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (code, said), "{status:?}");
        assert_eq!(
            told_of(&status).get("param").map(String::as_str),
            Some(param),
            "{status:?}"
        );
        let details = status.get_error_details();
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, param);
        assert!(
            status.message().contains(param) || param == "prompt" || param == "model",
            "{status:?}"
        );
    }
    // A failure of the rooms: more than a worker's pages.
    let status = ask(&cluster, generate_text("x".repeat(60), 60)).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "too_large"),
        "{status:?}"
    );
    let said = told_of(&status);
    assert!(said.contains_key("attempts") && said.contains_key("blame"), "{said:?}");
    // A field that this server does not know, in a message that is good without it.
    let status = unknown_field(&cluster).await;
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "unknown_parameter"),
        "{status:?}"
    );
    // An id that could not be aborted by.
    let long = "i".repeat(300);
    let status = cluster
        .inference()
        .await
        .generate(call_as(&long, generate_text("x", 1)))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "invalid_value"),
        "{status:?}"
    );
    oracle(&cluster).await;
}

async fn unknown_field(cluster: &Cluster) -> Status {
    let newer = Newer {
        unknown: Some(TokenIds { ids: vec![1] }),
    };
    let mut bytes = generate_text("Hello", 4).encode_to_vec();
    bytes.extend(newer.encode_to_vec());
    let mut client = tonic::client::Grpc::new(cluster.channel().await);
    client.ready().await.unwrap();
    let path = format!("/{SERVICE}/Generate").parse().unwrap();
    let codec = tonic_prost::ProstCodec::<Raw, innkeeper_proto::inference::GenerateReply>::default();
    client
        .server_streaming(Request::new(Raw(bytes)), path, codec)
        .await
        .unwrap_err()
}

/// A message that is sent as it is.
#[derive(Clone, Debug, Default, PartialEq)]
struct Raw(Vec<u8>);

impl prost::Message for Raw {
    fn encode_raw(&self, buf: &mut impl prost::bytes::BufMut) {
        buf.put_slice(&self.0);
    }
    fn merge_field(
        &mut self,
        _: u32,
        _: prost::encoding::WireType,
        _: &mut impl prost::bytes::Buf,
        _: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        Ok(())
    }
    fn encoded_len(&self) -> usize {
        self.0.len()
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}
