package backends_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	_ "github.com/lockkit/lock/drivers/all"
)

// bound is within what an error must come, on however busy a machine.
const bound = 10 * time.Second

// refused opens what must not open and returns the error.
func refused(t *testing.T, raw string) error {
	t.Helper()
	start := time.Now()
	b, err := lock.Open(context.Background(), raw) // no deadline: the bound is ours
	if err == nil {
		b.Close()
		t.Fatalf("%s was opened", raw)
	}
	if took := time.Since(start); took > bound+2*time.Second {
		t.Errorf("the error took %v: %v", took, err)
	}
	return err
}

// mustBlame wants a *lock.ConfigError of the key that says what to do.
func mustBlame(t *testing.T, err error, key string) {
	t.Helper()
	var fault *lock.ConfigError
	switch {
	case !errors.As(err, &fault):
		t.Errorf("%T is no *ConfigError: %v", err, err)
	case fault.Key != key:
		t.Errorf("key %q, want %q: %v", fault.Key, key, err)
	case fault.Problem == "" || fault.Fix == "":
		t.Errorf("without a mend: %v", err)
	}
}

// mustNotTell wants no secret in any form of an error.
func mustNotTell(t *testing.T, err error, secrets ...string) {
	t.Helper()
	var texts []string
	for e := err; e != nil; e = errors.Unwrap(e) {
		texts = append(texts, e.Error(), fmt.Sprintf("%+v", e), fmt.Sprintf("%#v", e))
	}
	for _, secret := range secrets {
		for _, text := range texts {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in: %s", secret, text)
			}
		}
	}
}

// A hosts is a URL of each scheme on servers that nobody may be sent to.
var hosts = map[string]string{
	"mem":      "mem://space",
	"redis":    "redis://h.invalid:6379",
	"rediss":   "rediss://h.invalid:6379",
	"redlock":  "redlock://a.invalid:1,b.invalid:1,c.invalid:1",
	"etcd":     "etcd://h.invalid:2379",
	"etcds":    "etcds://h.invalid:2379",
	"zk":       "zk://h.invalid:2181",
	"postgres": "postgres://h.invalid:5432/db",
	"advisory": "postgres://h.invalid:5432/db?lock_mode=advisory",
}

func TestEverySchemeRefusesWrongSettingsBeforeAnythingIsSent(t *testing.T) {
	for _, c := range []struct{ settings, key, mend string }{
		{"lock_tll=5s", "lock_tll", "lock_ttl"},
		{"lock_prefx=a", "lock_prefx", "lock_prefix"},
		{"lock_whatever=1", "lock_whatever", "lock_prefix"},
		{"lock_ttl=5s&lock_ttl=6s", "lock_ttl", "once"},
		{"lock_ttl=5s&lock_prefix=a&lock_prefix=a", "lock_prefix", "once"},
		{"lock_ttl=0s", "lock_ttl", "15s"},
		{"lock_ttl=-1s", "lock_ttl", "15s"},
		{"lock_ttl=5", "lock_ttl", "15s"},
		{"lock_ttl=9000h", "lock_ttl", "at most"},
		{"lock_ttl=", "lock_ttl", "15s"},
		{"lock_poll=never", "lock_poll", "500ms"},
		{"lock_token_base=-1", "lock_token_base", "from 0"},
		{"lock_need=correctnes", "lock_need", "correctness"},
		{"lock_note=a%00b", "lock_note", "plain text"},
		{"lock_ttl=%zz", "lock_ttl", "%25"},
	} {
		for name, raw := range hosts {
			sep := "?"
			if strings.Contains(raw, "?") {
				sep = "&"
			}
			t.Run(name+"?"+c.settings, func(t *testing.T) {
				err := refused(t, raw+sep+c.settings)
				mustBlame(t, err, c.key)
				if !strings.Contains(err.Error(), c.mend) {
					t.Errorf("the mend does not tell of %q: %v", c.mend, err)
				}
			})
		}
	}
}

func TestAWrongURLIsRefusedWithTheKeyToMend(t *testing.T) {
	for raw, key := range map[string]string{
		"":                                       "url",
		"127.0.0.1:6379":                         "url",
		"redis:127.0.0.1":                        "url",
		"redis//127.0.0.1":                       "url",
		"redis://h.invalid#x":                    "url",
		"http://h.invalid":                       "scheme",
		"redi://h.invalid":                       "scheme",
		"consul://h.invalid":                     "scheme",
		"mem://a,b":                              "host",
		"mem://a:1":                              "host",
		"redis://":                               "host",
		"rediss:///0":                            "host",
		"redis://a.invalid,b.invalid":            "host",
		"redis://h.invalid:0":                    "host",
		"redis://h.invalid:65536":                "host",
		"redis://h.invalid:port":                 "host",
		"redis://h.invalid/notanumber":           "path",
		"redlock://":                             "host",
		"redlock://a.invalid":                    "host",
		"redlock://a.invalid,b.invalid":          "host",
		"redlock://a.x,b.x,c.x,d.x":              "host",
		"redlock://a.x,b.x,a.x":                  "host",
		"redlock://a.x,b.x,A.x:6379":             "host",
		"redlock://[::1]:1,[::1]:2,[::1]:01":     "host",
		"redlock://[::1],[0:0::1],[::2]":         "host",
		"redlock://a.x,b.x,":                     "host",
		"etcd://":                                "host",
		"etcd://h.invalid/chroot":                "path",
		"etcd://a.x,a.x":                         "host",
		"etcd://u:p@a.x,v:q@b.x":                 "user",
		"zk://":                                  "url",
		"zk://u:p@a.x,v:q@b.x":                   "user",
		"zk://h.invalid/a//b":                    "chroot",
		"postgres://u:p@a.x,v:q@b.x/db":          "user",
		"postgres://h.invalid/db?lock_mode=row":  "lock_mode",
		"postgres://h.invalid/db?lock_table=a;b": "lock_table",
		"postgres://h.invalid/db?lock_mode=cas&lock_max_held=5": "lock_max_held",
		"redis://::1:6379":         "host",
		"redis://[::1:6379":        "host",
		"redis://[127.0.0.1]:6379": "host",
		"etcd://[::1]2379":         "host",
		"zk://::1":                 "host",
		"postgres://::1/db":        "host",
		"redlock://::1,::2,::3":    "host",
	} {
		t.Run(raw, func(t *testing.T) { mustBlame(t, refused(t, raw), key) })
	}
}

func TestWhereNobodyListensTheErrorNamesTheAddressAndMayPass(t *testing.T) {
	for _, raw := range []string{
		"redis://%s", "rediss://%s", "redlock://%s,%s,%s", "etcd://%s", "etcds://%s", "zk://%s",
		"postgres://u@%s/db", "postgres://u@%s/db?lock_mode=advisory",
	} {
		for _, host := range []string{"127.0.0.1", "[::1]"} {
			t.Run(raw+" "+host, func(t *testing.T) {
				t.Parallel()
				var addrs []any
				for range strings.Count(raw, "%s") {
					addrs = append(addrs, closedPort(t, host))
				}
				err := refused(t, fmt.Sprintf(raw, addrs...))
				if !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("%T does not match ErrUnavailable: %v", err, err)
				}
				if !strings.Contains(err.Error(), addrs[0].(string)) {
					t.Errorf("the address is not in: %v", err)
				}
			})
		}
	}
}

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Skip(err) // no IPv6 here
	}
	defer l.Close()
	return l.Addr().String()
}

func TestAServerThatNeverAnswersIsGivenUp(t *testing.T) {
	for _, raw := range []string{
		"redis://%s", "rediss://%s", "redlock://%s,%s,%s", "etcd://%s", "etcds://%s", "zk://%s",
		"postgres://u@%s/db", "postgres://u@%s/db?lock_mode=advisory",
	} {
		t.Run(raw, func(t *testing.T) {
			t.Parallel()
			var addrs []any
			for range strings.Count(raw, "%s") {
				addrs = append(addrs, mute(t))
			}
			err := refused(t, fmt.Sprintf(raw, addrs...))
			if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), addrs[0].(string)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// mute is the address of a server that takes connections and says nothing.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
		}
	}()
	return l.Addr().String()
}

// A password that breaks every parser that does not escape.
const weird = `p@s:s/w?o#r%d,'"\ &=é[x]`

// escape writes a password for a URL.
func escape(password string) string {
	var b strings.Builder
	for _, c := range []byte(password) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

func TestNoErrorTellsThePassword(t *testing.T) {
	escaped := escape(weird)
	for _, scheme := range []string{"redis://", "rediss://", "redlock://", "etcd://", "zk://", "postgres://", "mem://", "nope://", ""} {
		for _, secret := range []string{weird, escaped, "hunter2secret", "hun,ter2secret", "%hunter2secret", "hunter2/secret", "hunter2@secret", "hunter2?secret", "hunter2#secret", "[hunter2secret"} {
			for _, rest := range []string{
				"u:%s@", "u:%s@:0", ":%s@h.invalid:port", "u:%s@h.invalid:1?lock_tll=1s", "u:%s@h.invalid:99999", "u:%s@[::1",
				"u:%s@h.invalid/x?y=%%zz", "u:%s@a.x,b.x,c.x,d.x", "u:%s@a.x,v:%s@a.x", "u:%s@h.invalid?lock_ttl=x&lock_ttl=x",
			} {
				raw := scheme + strings.ReplaceAll(rest, "%s", secret)
				err := refused(t, strings.ReplaceAll(raw, "%%", "%"))
				mustNotTell(t, err, weird, escaped, "hunter2secret", "ter2secret", "secret@")
			}
		}
	}
}

func TestAWrongPasswordIsTheFaultOfASettingAndIsNotShown(t *testing.T) {
	for _, right := range []string{"correct-horse-battery", weird} {
		redis := servers.For(t, servers.Redis, servers.Options{Password: right, Members: 3})
		addr := redis.Addrs()[0]
		wrong := escape("wrong" + right)
		for name, raw := range map[string]string{
			"wrong":   "redis://:" + wrong + "@" + addr,
			"none":    "redis://" + addr,
			"user":    "redis://nobody:" + wrong + "@" + addr,
			"redlock": "redlock://:" + wrong + "@" + strings.Join(redis.Addrs(), ","),
		} {
			t.Run(name, func(t *testing.T) {
				err := refused(t, raw)
				mustBlame(t, err, "password")
				mustNotTell(t, err, right, wrong, "wrong"+right)
			})
		}
		mustOpen(t, "redis://:"+escape(right)+"@"+addr)
		mustOpen(t, "redlock://:"+escape(right)+"@"+strings.Join(redis.Addrs(), ","))
	}
}

func TestAWrongPasswordOfPostgresIsTheFaultOfASettingAndIsNotShown(t *testing.T) {
	for _, right := range []string{"correct-horse-battery", weird} {
		addr := servers.For(t, servers.Postgres, servers.Options{Password: right}).Addrs()[0]
		wrong := escape("wrong" + right)
		at := "@" + addr + "/" + servers.Database + "?lock_create=true&sslmode=disable&lock_mode="
		for _, mode := range []string{"cas", "advisory"} {
			for name, user := range map[string]string{
				"wrong": servers.User + ":" + wrong,
				"none":  servers.User,
				"user":  "nobody:" + wrong,
			} {
				t.Run(mode+" "+name, func(t *testing.T) {
					err := refused(t, "postgres://"+user+at+mode)
					mustBeConfig(t, err)
					mustNotTell(t, err, right, wrong, "wrong"+right)
				})
			}
			mustOpen(t, "postgres://"+servers.User+":"+escape(right)+at+mode)
		}
	}
}

func TestAMissingTableOrDatabaseIsTheFaultOfASetting(t *testing.T) {
	addr := servers.For(t, servers.Postgres, servers.Options{}).Addrs()[0]
	for _, mode := range []string{"cas", "advisory"} {
		at := "postgres://" + servers.User + "@" + addr + "/%s?sslmode=disable&lock_mode=" + mode
		t.Run(mode, func(t *testing.T) {
			err := refused(t, fmt.Sprintf(at, servers.Database))
			mustBlame(t, err, "lock_table")
			if !strings.Contains(err.Error(), "lock_create") {
				t.Errorf("the mend does not tell of lock_create: %v", err)
			}
			err = refused(t, fmt.Sprintf(at, "nosuchdatabase"))
			mustBeConfig(t, err)
		})
	}
}

func mustBeConfig(t *testing.T, err error) {
	t.Helper()
	var fault *lock.ConfigError
	if !errors.As(err, &fault) || fault.Fix == "" {
		t.Errorf("%T is no *ConfigError with a mend: %v", err, err)
	}
}

// mustOpen shows that the refusals were not for another reason.
func mustOpen(t *testing.T, raw string) {
	t.Helper()
	b, err := lock.Open(t.Context(), raw)
	if err != nil {
		t.Errorf("the right password is refused: %v", err)
		return
	}
	b.Close()
}

// Every other backend is asked by the suite: basic/engine-names.
func TestANameIsRefusedWithTheKeyName(t *testing.T) {
	b, err := lock.Open(t.Context(), "mem://names")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range []string{"", strings.Repeat("x", drivers.MaxName+1)} {
		_, err := b.Lock(name, nil).TryAcquire(t.Context())
		mustBlame(t, err, "name")
		_, err = b.FencedLock(name, nil)
		mustBlame(t, err, "name")
	}
}
