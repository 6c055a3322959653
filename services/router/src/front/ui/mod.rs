//! `/ui`: a page for people that shows what this router's rooms do, and why those that are over ended.
//!
//! ```text
//! /ui               the page
//! /ui/config.json   what it must be told: where traces are shown
//! /ui/NAME          its style and its modules
//! ```
//!
//! It is served whole from the program, loads nothing from elsewhere, and reads what everybody may read: the GET endpoints
//! under `/innkeeper/v1`. Its Content-Security-Policy allows no script but these files, and no markup made from text: what a
//! server says is text on it, whatever it holds.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use serde_json::json;

/// Everything from here, nothing inline, no frame around it, no form sent anywhere, and no text turned into markup.
const POLICY: &str = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Path below `/ui`, kind, and text.
const FILES: [(&str, &str, &str); 14] = [
    ("", HTML, include_str!("index.html")),
    ("/app.css", CSS, include_str!("app.css")),
    ("/icon.svg", SVG, include_str!("icon.svg")),
    ("/main.js", SCRIPT, include_str!("main.js")),
    ("/api.js", SCRIPT, include_str!("api.js")),
    ("/dom.js", SCRIPT, include_str!("dom.js")),
    ("/format.js", SCRIPT, include_str!("format.js")),
    ("/model.js", SCRIPT, include_str!("model.js")),
    ("/workers.js", SCRIPT, include_str!("workers.js")),
    ("/map.js", SCRIPT, include_str!("map.js")),
    ("/rooms.js", SCRIPT, include_str!("rooms.js")),
    ("/ended.js", SCRIPT, include_str!("ended.js")),
    ("/details.js", SCRIPT, include_str!("details.js")),
    ("/waterfall.js", SCRIPT, include_str!("waterfall.js")),
];

/// The routes of the page. `jaeger` is where people look at traces, if anywhere.
pub fn routes(jaeger: Option<&str>) -> Router {
    let config = json!({ "jaeger_url": jaeger, "version": env!("CARGO_PKG_VERSION") });
    let config = move || async move { ([(CACHE_CONTROL, "no-store")], Json(config)) };
    FILES
        .into_iter()
        .fold(Router::new(), |router, (path, kind, text)| {
            router.route(&format!("/ui{path}"), file(kind, text))
        })
        .route("/ui/", file(HTML, include_str!("index.html")))
        .route("/ui/config.json", get(config))
}

fn file(kind: &'static str, text: &'static str) -> MethodRouter {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    get(move |headers: HeaderMap| async move { answer(kind, text, &tag, &headers) })
}

/// A browser keeps its copy and asks each time whether it is still the one: a new router is never shown an old page.
fn answer(kind: &'static str, text: &'static str, tag: &str, headers: &HeaderMap) -> Response {
    let known = headers.get(IF_NONE_MATCH).is_some_and(|known| known == tag);
    let always = [
        (ETAG, tag),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    if known {
        return (StatusCode::NOT_MODIFIED, always).into_response();
    }
    (always, [(CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(path: &str, tag: Option<&str>) -> Response {
        let mut request = Request::get(path);
        if let Some(tag) = tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let routes = routes(Some("http://traces:16686"));
        routes.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn text(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn every_file_has_its_kind_its_policy_and_a_tag_that_saves_it_the_second_time() {
        for (path, kind, content) in FILES {
            let path = format!("/ui{path}");
            let first = ask(&path, None).await;
            assert_eq!(first.status(), StatusCode::OK, "{path}");
            let header = |name| first.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(header(CONTENT_TYPE), kind, "{path}");
            assert_eq!(header(CACHE_CONTROL), "no-cache", "{path}");
            assert!(
                header(CONTENT_SECURITY_POLICY).starts_with("default-src 'self';"),
                "{path}"
            );
            let tag = header(ETAG);
            assert_eq!(text(first).await, content, "{path}");
            let second = ask(&path, Some(&tag)).await;
            assert_eq!(second.status(), StatusCode::NOT_MODIFIED, "{path}");
            assert_eq!(text(second).await, "", "{path}");
        }
        assert_eq!(ask("/ui/nothing.js", None).await.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn the_page_is_told_where_traces_are_shown() {
        let answer = ask("/ui/config.json", None).await;
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
        let config: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!(config["jaeger_url"], "http://traces:16686");
    }

    /// What a policy would stop in the browser is not written in the first place.
    #[test]
    fn nothing_is_inline_from_elsewhere_or_made_from_text() {
        for (path, _, content) in FILES {
            for never in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=",
                " onclick=",
            ] {
                assert!(!content.contains(never), "{path}: {never}");
            }
            let elsewhere = content.split("://").count() - 1;
            let namespaces = content.matches("http://www.w3.org/").count();
            assert_eq!(elsewhere, namespaces, "{path} names an address");
        }
        let page = include_str!("index.html");
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script type=\"module\" src=\"/ui/").count()
        );
    }

    /// Every module that is imported is served, and the other way round.
    #[test]
    fn the_modules_are_whole() {
        let quoted = |content: &str| -> Vec<String> {
            let quotes = content.split('"');
            let paths = quotes.filter(|path| path.starts_with("./") || path.starts_with("/ui/"));
            paths
                .map(|path| path.trim_start_matches("/ui").trim_start_matches('.').to_owned())
                .collect()
        };
        let named: BTreeSet<_> = FILES.iter().flat_map(|(_, _, content)| quoted(content)).collect();
        let mut served: BTreeSet<_> = FILES.iter().map(|(path, _, _)| (*path).to_owned()).collect();
        served.remove("");
        served.insert("/config.json".to_owned());
        assert_eq!(named, served);
    }
}
