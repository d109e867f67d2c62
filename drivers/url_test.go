package drivers_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/drivers"
)

func TestURLsAreSplit(t *testing.T) {
	good := []struct {
		raw   string
		addrs []string
		path  string
	}{
		{"redis://localhost", []string{"localhost:1"}, ""},
		{"redis://localhost:6379/3", []string{"localhost:6379"}, "3"},
		{"REDIS://a,b:2,c", []string{"a:1", "b:2", "c:1"}, ""},
		{"zk://[::1]:1,[::2],127.0.0.1/chroot/deep", []string{"[::1]:1", "[::2]:1", "127.0.0.1:1"}, "chroot/deep"},
		{"etcd://a?x=1", []string{"a:1"}, ""},
		{"mem://", nil, ""},
		{"mem:///a%2Fb", nil, "a/b"},
	}
	for _, c := range good {
		u, err := drivers.ParseURL(c.raw)
		if err != nil {
			t.Errorf("%q: %v", c.raw, err)
			continue
		}
		var addrs []string
		for _, n := range u.Nodes {
			addrs = append(addrs, n.Addr("1"))
		}
		if !slices.Equal(addrs, c.addrs) || u.Path != c.path {
			t.Errorf("%q: hosts %v and path %q", c.raw, addrs, u.Path)
		}
	}
}

func TestUserInfoServesHostsWithoutTheirOwn(t *testing.T) {
	u, err := drivers.ParseURL("redlock://me:a%40b%2C%2F@h1,:other@h2,h3:9")
	if err != nil {
		t.Fatal(err)
	}
	want := []drivers.Node{
		{User: "me", Password: "a@b,/", HasPassword: true, Host: "h1"},
		{Password: "other", HasPassword: true, Host: "h2"},
		{User: "me", Password: "a@b,/", HasPassword: true, Host: "h3", Port: "9"},
	}
	if !slices.Equal(u.Nodes, want) {
		t.Errorf("got %+v", u.Nodes)
	}
	if s := u.String(); s != "redlock://h1,h2,h3:9" {
		t.Errorf("shown as %q", s)
	}
}

func TestBadURLsNameTheKey(t *testing.T) {
	for raw, key := range map[string]string{
		"":                      "url",
		"localhost:6379":        "url",
		"://localhost":          "url",
		"re dis://x":            "url",
		"redis://::1":           "host",
		"redis://[::1":          "host",
		"redis://[::1]x":        "host",
		"redis://[localhost]":   "host",
		"redis://a,,b":          "host",
		"redis://a:0":           "host",
		"redis://a:65536":       "host",
		"redis://a:port":        "host",
		"redis://a b":           "host",
		"redis://a:1/%zz":       "path",
		"redis://:%zz@a":        "password",
		"redis://a?x=1&x=2":     "x",
		"redis://a?x=%zz":       "x",
		"redis://a?x=1#y":       "url",
		"redis://u:p@ss@h":      "url",
		"redis://u:p/ss@h":      "url",
		"redis://u:p?ss@h":      "url",
		"redis://a?lock_note=@": "url",
	} {
		_, err := drivers.ParseURL(raw)
		var config *drivers.ConfigError
		if !errors.As(err, &config) {
			t.Errorf("%q: got %v, want a *ConfigError", raw, err)
		} else if config.Key != key || config.Fix == "" {
			t.Errorf("%q: names %q, mend %q; want the key %q", raw, config.Key, config.Fix, key)
		}
	}
}

func TestSettingsAreTakenOnce(t *testing.T) {
	u, err := drivers.ParseURL("x://h?lock_s=a+b&lock_d=1500ms&lock_i=7&lock_b=true&lock_w=two&native=1&other=2")
	if err != nil {
		t.Fatal(err)
	}
	d, err1 := u.TakeDuration("lock_d", 0)
	i, err2 := u.TakeInt("lock_i", 0, 1, 9)
	b, err3 := u.TakeBool("lock_b", false)
	w, err4 := u.TakeOneOf("lock_w", "one", "one", "two")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if s := u.TakeString("lock_s", ""); s != "a b" || d != 1500*time.Millisecond || i != 7 || !b || w != "two" {
		t.Error(s, d, i, b, w)
	}
	if err := u.Done(); err == nil || !strings.Contains(err.Error(), "native is not a setting of x://") {
		t.Errorf("with a key left: %v", err)
	}
	if others := u.TakeOthers(); others.Encode() != "native=1&other=2" {
		t.Errorf("others are %v", others)
	}
	if err := u.Done(); err != nil {
		t.Error(err)
	}
}

func TestDefaultsStandForAbsentSettings(t *testing.T) {
	u, _ := drivers.ParseURL("x://h")
	d, _ := u.TakeDuration("d", time.Second)
	i, _ := u.TakeInt("i", 3, 0, 9)
	b, _ := u.TakeBool("b", true)
	w, _ := u.TakeOneOf("w", "one", "one")
	if s := u.TakeString("s", "def"); d != time.Second || i != 3 || !b || w != "one" || s != "def" {
		t.Error(d, i, b, w, s)
	}
}

func TestBadSettingsNameTheMend(t *testing.T) {
	take := map[string]func(*drivers.URL) error{
		"d=x":  func(u *drivers.URL) error { _, err := u.TakeDuration("d", 0); return err },
		"d=0s": func(u *drivers.URL) error { _, err := u.TakeDuration("d", 0); return err },
		"i=10": func(u *drivers.URL) error { _, err := u.TakeInt("i", 0, 1, 9); return err },
		"i=x":  func(u *drivers.URL) error { _, err := u.TakeInt("i", 0, 1, 9); return err },
		"b=ja": func(u *drivers.URL) error { _, err := u.TakeBool("b", false); return err },
		"w=x":  func(u *drivers.URL) error { _, err := u.TakeOneOf("w", "a", "a", "b"); return err },
	}
	for query, take := range take {
		u, err := drivers.ParseURL("x://h?" + query)
		if err != nil {
			t.Fatal(err)
		}
		var config *drivers.ConfigError
		if err := take(u); !errors.As(err, &config) || config.Key != query[:1] || config.Fix == "" {
			t.Errorf("%s: got %v", query, err)
		}
	}
}

// FuzzParseURL: whatever is given, the parser does not panic, never shows a
// password, and what it accepts reads the same when it is put together again.
func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{
		"redis://u:p@h:1/0?lock_ttl=5s", "zk://[::1]:1,[::2]:2/x", "redlock://:a@h1,:b@h2,h3", "mem://", "x://%41?%41=%41", "a://@,@",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := drivers.ParseURL(raw)
		if err != nil {
			var config *drivers.ConfigError
			if !errors.As(err, &config) || config.Key == "" || config.Fix == "" {
				t.Fatalf("%q: %v is no *ConfigError with a key and a mend", raw, err)
			}
			return
		}
		for _, n := range u.Nodes {
			if _, _, err := net.SplitHostPort(n.Addr("1")); err != nil {
				t.Errorf("%q: host %+v: %v", raw, n, err)
			}
		}
		again, err := drivers.ParseURL(strings.Split(u.String(), "?")[0])
		if u.Path == "" && (err != nil || again.String() != u.String()) {
			t.Errorf("%q is shown as %q, which reads %v, %v", raw, u, again, err)
		}
	})
}

// FuzzURLHidesPasswords: a password of any kind, correctly written, is in no
// error and in no text about the URL.
func FuzzURLHidesPasswords(f *testing.F) {
	f.Add("s3cret", "host:badport", "lock_ttl=x")
	f.Add("a,b/c?d#e@f", "h1,h2:0", "")
	f.Fuzz(func(t *testing.T, password, hosts, query string) {
		const mark = "MARKEDSECRET"
		escaped := strings.NewReplacer("%", "%25", "@", "%40", "/", "%2F", "?", "%3F", "#", "%23", ",", "%2C").Replace(password)
		u, err := drivers.ParseURL("x://user:" + mark + escaped + mark + "@" + hosts + "?" + query)
		if err != nil && strings.Contains(err.Error(), mark) {
			t.Errorf("the password is in %q", err)
		}
		if err == nil && (strings.Contains(u.String(), mark) || strings.Contains(errText(u.Done()), mark)) {
			t.Errorf("the password is in %q", u)
		}
	})
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
