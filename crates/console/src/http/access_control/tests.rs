use super::*;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn access(rules: AccessRules) -> AccessControl {
    let hosts = vec!["console.example".to_owned()];
    AccessControl::new(rules, hosts, TlsMode::None, String::new(), Arc::new(|_| {}))
}

#[test]
fn unlisted_host_names_are_refused() {
    let access = access(AccessRules::default());
    for host in
        ["localhost", "LOCALHOST:8787", "127.0.0.1:8787", "[::1]:8787", "console.example:443"]
    {
        assert!(access.is_allowed_host(host), "{host}");
    }
    for host in [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8787",
        "[x]",
        "localhost:evil.example",
        "localhost:1@evil.example",
        "[::1]evil.example",
        "[::1]:evil.example",
        "[::1",
    ] {
        assert!(!access.is_allowed_host(host), "{host}");
    }
}

#[test]
fn a_token_signs_in_and_the_cookie_identifies_the_session() {
    let token = |secret: &str, label: Option<&str>| Token {
        secret: secret.to_owned(),
        label: label.map(str::to_owned),
        rights: Rights::default(),
    };
    let tokens = vec![token("sesame", None), token("simsim", Some("night shift"))];
    let access = access(AccessRules { tokens, proxy: None });
    let sign_in =
        |secret: &str| access.sign_in(secret, Some("ann".to_owned()), (&HeaderMap::new(), HERE));
    assert_eq!(sign_in("Sesame"), Err(TokenRefusal::Wrong));
    let value = sign_in("sesame").unwrap();
    let mut headers = HeaderMap::new();
    assert!(access.identify(&headers, HERE).is_err());
    headers.insert(header::COOKIE, format!("a=b; pgmill={value}").parse().unwrap());
    assert_eq!(access.identify(&headers, HERE).unwrap().name.as_deref(), Some("ann"));
    access.sign_out(&headers);
    assert!(access.identify(&headers, HERE).is_err());
    let value = sign_in("simsim").unwrap();
    headers.insert(header::COOKIE, format!("pgmill={value}").parse().unwrap());
    assert_eq!(access.identify(&headers, HERE).unwrap().name.as_deref(), Some("night shift"));
}

#[test]
fn a_session_ends_with_its_token_and_follows_its_rights() {
    let token = |secret: &str, role: &str| Token {
        secret: secret.to_owned(),
        label: None,
        rights: Rights { role: Some(role.to_owned()), ..Rights::default() },
    };
    let rules = |tokens: &[Token]| AccessRules { tokens: tokens.to_vec(), proxy: None };
    let (one, other) = (token("sesame", "mill_operator"), token("simsim", "mill_viewer"));
    let access = access(rules(&[one.clone(), other.clone()]));
    let signed_in = |secret: &str| {
        let cookie = access.sign_in(secret, None, (&HeaderMap::new(), HERE)).unwrap();
        let cookie = format!("pgmill={cookie}").parse().unwrap();
        HeaderMap::from_iter([(header::COOKIE, cookie)])
    };
    let sessions = [signed_in("sesame"), signed_in("simsim")];
    let roles = || {
        let role = |it: &HeaderMap| access.identify(it, HERE).ok().and_then(|it| it.rights.role);
        sessions.each_ref().map(role)
    };
    let text = |role: &str| Some(role.to_owned());
    assert!(!access.set_rules(rules(&[one.clone(), other.clone()])));
    assert_eq!(roles(), [text("mill_operator"), text("mill_viewer")]);
    assert!(access.set_rules(rules(&[token("simsim", "mill_producer")])));
    assert_eq!(roles(), [None, text("mill_producer")]);
    // A session that has ended does not come back with its token.
    assert!(access.set_rules(rules(&[one, other])));
    assert_eq!(roles(), [None, text("mill_viewer")]);
}

#[test]
fn only_the_proxy_can_name_a_user() {
    let rule = |name: Option<&str>, group: Option<&str>, role: &str| UserRule {
        name: name.map(str::to_owned),
        group: group.map(str::to_owned),
        rights: Rights { role: Some(role.to_owned()), ..Rights::default() },
    };
    let users =
        vec![rule(Some("ann"), None, "mill_operator"), rule(None, Some("dba"), "mill_viewer")];
    let user_header = header::HeaderName::from_static("x-forwarded-user");
    let groups_header = Some(header::HeaderName::from_static("x-forwarded-groups"));
    let proxy = ProxySignIn { addresses: vec![HERE], user_header, groups_header, users };
    let access = access(AccessRules { tokens: Vec::new(), proxy: Some(proxy) });
    let role = |headers: &[(&'static str, &'static str)], from: IpAddr| {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        access.identify(&map, from).map(|it| it.rights.role.unwrap_or_default())
    };
    let (user, groups) = ("x-forwarded-user", "x-forwarded-groups");
    assert_eq!(role(&[(user, "ann")], HERE), Ok("mill_operator".to_owned()));
    assert_eq!(role(&[(user, "eve"), (groups, "x, dba")], HERE), Ok("mill_viewer".to_owned()));
    let refused = |name: &str| Err(NotAdmitted::UserRefused(name.to_owned()));
    assert_eq!(role(&[(user, "eve"), (groups, "dbas")], HERE), refused("eve"));
    assert_eq!(role(&[(user, "ann"), (user, "eve")], HERE), refused(user));
    let two_lists = [(user, "eve"), (groups, "x"), (groups, "dba")];
    assert_eq!(role(&two_lists, HERE), refused(groups));
    let elsewhere = "192.0.2.7".parse().unwrap();
    assert_eq!(role(&[(user, "ann")], elsewhere), Err(NotAdmitted::SignInRequired));
    assert_eq!(role(&[(user, " ")], HERE), Err(NotAdmitted::SignInRequired));
}
