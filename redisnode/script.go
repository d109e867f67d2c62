package redisnode

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed renew.lua
	renewSource string
	//go:embed release.lua
	releaseSource string
	//go:embed inspect.lua
	inspectSource string
)

var (
	acquireScript = newScript(acquireSource)
	renewScript   = newScript(renewSource)
	releaseScript = newScript(releaseSource)
	inspectScript = newScript(inspectSource)
)

// A script is run by its digest, in one round trip; a server that does not
// know it (new, restarted, flushed) is then sent the source. go-redis has the
// same, at the price of more allocations.
type script struct {
	source, digest any // boxed once
}

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source: source, digest: hex.EncodeToString(sum[:])}
}

// run sends the script. The first two of args are its own; then come the number
// of keys, the keys, and the arguments.
func (s script) run(ctx context.Context, client *redis.Client, args ...any) (*redis.Cmd, error) {
	args[0], args[1] = "evalsha", s.digest
	cmd := redis.NewCmd(ctx, args...)
	err := client.Process(ctx, cmd)
	if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return cmd, err
	}
	args[0], args[1] = "eval", s.source
	cmd = redis.NewCmd(ctx, args...)
	return cmd, client.Process(ctx, cmd)
}
