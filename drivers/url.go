package drivers

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A URL is a parsed backend URL:
//
//	scheme://[user[:password]@]host[:port][,[user[:password]@]host[:port]…][/path][?key=value&…]
//
// The standard library's parser can't serve: it refuses a list of bracketed
// IPv6 hosts, misreads two user infos, and prints the password in its errors.
//
// Settings are taken out one by one (TakeString and its kin); what is left at
// the end is an error (Done), so that a misspelt key is never ignored.
type URL struct {
	Scheme string
	Nodes  []Node // empty for a scheme without servers, as mem://
	Path   string // decoded, without the leading slash

	// TTL is lock_ttl or the default, set by package lock before the driver
	// is opened, for services that fix it when a session begins.
	TTL time.Duration

	values map[string]string
	asked  map[string]bool // keys that somebody takes: what a misspelt one may have meant
}

// A Node is one server of a URL. A user info before the first host serves all
// hosts that have none of their own.
type Node struct {
	User        string
	Password    string
	HasPassword bool
	Host        string // without brackets
	Port        string // empty: the service's default
}

// Addr is host:port, with brackets where IPv6 needs them.
func (n Node) Addr(defaultPort string) string {
	port := n.Port
	if port == "" {
		port = defaultPort
	}
	if strings.Contains(n.Host, ":") {
		return "[" + n.Host + "]:" + port
	}
	return n.Host + ":" + port
}

// ParseURL parses a backend URL. Errors are *ConfigError and never hold the
// user info.
func ParseURL(raw string) (*URL, error) {
	if raw == "" {
		return nil, &ConfigError{Key: "url", Problem: "is empty", Fix: "set it, like redis://127.0.0.1:6379"}
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !validScheme(scheme) {
		return nil, &ConfigError{Key: "url", Problem: "has no scheme", Fix: "write it like redis://127.0.0.1:6379"}
	}
	u := &URL{Scheme: strings.ToLower(scheme), asked: map[string]bool{}}
	if strings.Contains(rest, "#") {
		return nil, &ConfigError{Key: "url", Problem: "has a fragment (#…)", Fix: "write # as %23 if it belongs to a value"}
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if strings.Contains(path, "@") || strings.Contains(query, "@") {
		// Most likely a password with a bare / or ?, so nothing is shown.
		return nil, &ConfigError{Key: "url", Problem: "has an @ behind its hosts", Fix: "write @ as %40, and in a password / as %2F, ? as %3F, comma as %2C"}
	}
	var err error
	if u.Path, err = unescape("path", path, url.PathUnescape); err != nil {
		return nil, err
	}
	if u.Nodes, err = parseNodes(authority); err != nil {
		return nil, err
	}
	if u.values, err = parseQuery(query); err != nil {
		return nil, err
	}
	return u, nil
}

func validScheme(s string) bool {
	for i, c := range s {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789+-.", c)) {
			return false
		}
	}
	return s != ""
}

func parseNodes(authority string) ([]Node, error) {
	if authority == "" {
		return nil, nil
	}
	var nodes []Node
	for i, part := range strings.Split(authority, ",") {
		n, err := parseNode(part)
		if err != nil {
			return nil, hideSecret(err, part, authority)
		}
		if i > 0 && n.User == "" && !n.HasPassword {
			n.User, n.Password, n.HasPassword = nodes[0].User, nodes[0].Password, nodes[0].HasPassword
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// hideSecret drops the value from an error about a part that may be a piece of
// a password with a bare comma.
func hideSecret(err error, part, authority string) error {
	var ce *ConfigError
	if errors.As(err, &ce) && strings.Contains(authority, "@") && !strings.Contains(part, "@") {
		ce.Value = ""
	}
	return err
}

func parseNode(part string) (Node, error) {
	var n Node
	hostport := part
	if at := strings.LastIndexByte(part, '@'); at >= 0 {
		if strings.Contains(part[:at], "@") {
			return Node{}, &ConfigError{Key: "url", Problem: "has two @ in one host", Fix: "write @ in a user name or password as %40"}
		}
		hostport = part[at+1:]
		if err := n.parseUser(part[:at]); err != nil {
			return Node{}, err
		}
	}
	host, port, err := splitHostPort(hostport)
	if err != nil {
		return Node{}, err
	}
	n.Host, n.Port = host, port
	return n, nil
}

func (n *Node) parseUser(info string) error {
	user, password, has := strings.Cut(info, ":")
	var err error
	if n.User, err = unescape("user", user, url.PathUnescape); err != nil {
		return err
	}
	n.HasPassword = has
	n.Password, err = unescape("password", password, url.PathUnescape)
	return err
}

func splitHostPort(s string) (host, port string, err error) {
	bad := func(problem, fix string) (string, string, error) {
		return "", "", &ConfigError{Key: "host", Value: s, Problem: problem, Fix: fix}
	}
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return bad("has no closing bracket", "write an IPv6 address like [::1]:6379")
		}
		host, port = s[1:end], s[end+1:]
		if port != "" && !strings.HasPrefix(port, ":") {
			return bad("has text after the bracket", "write an IPv6 address like [::1]:6379")
		}
		if !strings.Contains(host, ":") {
			return bad("has no IPv6 address in its brackets", "write it like [::1]:6379")
		}
		port = strings.TrimPrefix(port, ":")
	} else {
		host, port, _ = strings.Cut(s, ":")
		if strings.Contains(port, ":") {
			return bad("has more than one colon", "put an IPv6 address into brackets, like [::1]:6379")
		}
	}
	if host, err = unescape("host", host, url.PathUnescape); err != nil {
		return "", "", err
	}
	if host == "" || strings.ContainsAny(host, " \t\r\n\x00/?#@[]%,") {
		return bad("is not a host name or address", "write it like 127.0.0.1:6379")
	}
	if port != "" {
		if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 {
			return bad("has a bad port", "use a number from 1 to 65535")
		}
	}
	return host, port, nil
}

func parseQuery(query string) (map[string]string, error) {
	values := map[string]string{}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		k, v, _ := strings.Cut(pair, "=")
		key, err := unescape("key", k, url.QueryUnescape)
		if err != nil {
			return nil, err
		}
		if key == "" {
			return nil, &ConfigError{Key: "url", Problem: "has a setting without a key", Fix: "write settings like ?lock_ttl=15s&lock_note=…"}
		}
		value, err := unescape(key, v, url.QueryUnescape)
		if err != nil {
			return nil, err
		}
		if _, twice := values[key]; twice {
			return nil, &ConfigError{Key: key, Problem: "is given twice", Fix: "give it once"}
		}
		values[key] = value
	}
	return values, nil
}

// unescape hides what it could not decode: it may be a part of a password.
func unescape(key, s string, decode func(string) (string, error)) (string, error) {
	out, err := decode(s)
	if err != nil {
		return "", &ConfigError{Key: key, Problem: "has a bad % escape", Fix: "write % itself as %25"}
	}
	return out, nil
}

// take removes a key and remembers that it was asked for.
func (u *URL) take(key string) (string, bool) {
	u.asked[key] = true
	v, ok := u.values[key]
	delete(u.values, key)
	return v, ok
}

// TakeString takes a setting, or def if it is absent.
func (u *URL) TakeString(key, def string) string {
	if v, ok := u.take(key); ok {
		return v
	}
	return def
}

// TakeDuration takes a positive duration such as 15s.
func (u *URL) TakeDuration(key string, def time.Duration) (time.Duration, error) {
	v, ok := u.take(key)
	if !ok {
		return def, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, &ConfigError{Key: key, Value: v, Problem: "is not a duration", Fix: "write it like 15s or 500ms"}
	}
	if d <= 0 {
		return 0, &ConfigError{Key: key, Value: v, Problem: "is not positive", Fix: "write it like 15s or 500ms"}
	}
	return d, nil
}

// TakeInt takes a whole number from min to max.
func (u *URL) TakeInt(key string, def, min, max int64) (int64, error) {
	v, ok := u.take(key)
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < min || n > max {
		return 0, &ConfigError{Key: key, Value: v, Problem: "is out of range", Fix: fmt.Sprintf("use a whole number from %d to %d", min, max)}
	}
	return n, nil
}

// TakeBool takes true or false.
func (u *URL) TakeBool(key string, def bool) (bool, error) {
	v, ok := u.take(key)
	if !ok {
		return def, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, &ConfigError{Key: key, Value: v, Problem: "is neither true nor false", Fix: "write true or false"}
	}
	return b, nil
}

// TakeOneOf takes one of the given words.
func (u *URL) TakeOneOf(key, def string, words ...string) (string, error) {
	v, ok := u.take(key)
	if !ok {
		return def, nil
	}
	if !slices.Contains(words, v) {
		return "", &ConfigError{Key: key, Value: v, Problem: "is unknown", Fix: "use one of " + strings.Join(words, ", ")}
	}
	return v, nil
}

// TakeOthers takes every key that does not begin with lock_, for a driver that
// hands them to its client library.
func (u *URL) TakeOthers() url.Values {
	others := url.Values{}
	for k, v := range u.values {
		if !strings.HasPrefix(k, "lock_") {
			others.Set(k, v)
			delete(u.values, k)
		}
	}
	return others
}

// Done returns a *ConfigError if a key is left that nobody took. A driver calls
// it before it sends anything.
func (u *URL) Done() error {
	for _, key := range slices.Sorted(maps.Keys(u.values)) {
		return &ConfigError{Key: key, Problem: "is not a setting of " + u.Scheme + "://", Fix: u.suggest(key)}
	}
	return nil
}

func (u *URL) suggest(key string) string {
	known := slices.Sorted(maps.Keys(u.asked))
	if near, ok := nearest(key, known); ok {
		return "did you mean " + near + "?"
	}
	return "the settings are " + strings.Join(known, ", ")
}

// String is the URL without passwords and without settings.
func (u *URL) String() string {
	var b strings.Builder
	b.WriteString(u.Scheme + "://")
	for i, n := range u.Nodes {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strings.TrimSuffix(n.Addr(""), ":"))
	}
	if u.Path != "" {
		b.WriteString("/" + u.Path)
	}
	return b.String()
}

// nearest finds the word that word was most likely meant to be.
func nearest(word string, words []string) (string, bool) {
	best, least := "", 3
	for _, w := range words {
		if d := distance(word, w); d < least {
			best, least = w, d
		}
	}
	return best, best != ""
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
