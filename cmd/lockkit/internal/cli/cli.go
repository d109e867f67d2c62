// Package cli is the lockkit command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/lockkit/lock/drivers"
)

// The exit statuses.
const (
	OK          = 0
	Broken      = 1   // a check failed, or a server that is there could not be used
	Usage       = 2   // what was asked for is wrong; nothing was checked
	Interrupted = 130 // by Ctrl-C or SIGTERM
)

const long = `lockkit tells what lock backends really promise, by trying to break each promise
on real servers, and what they cost.

Exit status:
  0    all that ran passed (a missing server is a row, not a failure)
  1    a check failed, or a server that is there could not be used
  2    the command line, a URL or a password is wrong; nothing was checked
  130  interrupted by Ctrl-C or SIGTERM; what was found until then is printed`

// Main runs the command and returns its exit status. The first Ctrl-C ends it
// in good order, the second one at once.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	redis.SetLogger(silence{}) // it writes to the standard error, in the midst of our lines
	return Run(ctx, args, stdout, stderr)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// Run is Main without the signals: the end of ctx stands for them.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	status := statusOf(err)
	if err != nil && !errors.Is(err, errBroken) && !errors.Is(err, errInterrupted) {
		fmt.Fprintln(stderr, "lockkit: "+err.Error())
	}
	if status == Usage {
		fmt.Fprintln(stderr, "See "+helpFor(root, args)+".")
	}
	return status
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "lockkit",
		Short:         "Compare lock backends on real servers",
		Long:          long,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		Version:       readVersion().text(),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("{{.Version}}")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage("%w%s", err, suggestFlag(c, err)) })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newCompare(), newVerify(), newVersion(), newTable())
	return root
}

// helpFor names the help of the command that was called.
func helpFor(root *cobra.Command, args []string) string {
	called, _, err := root.Find(args)
	if err != nil {
		called = root
	}
	return called.CommandPath() + " --help"
}

// These end a run whose findings were printed.
var (
	errBroken      = errors.New("a promise was broken")
	errInterrupted = errors.New("interrupted")
)

// A usageError says what is wrong with the command line.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

func statusOf(err error) int {
	var wrong *usageError
	var fault *drivers.ConfigError
	switch {
	case err == nil:
		return OK
	case errors.Is(err, errInterrupted):
		return Interrupted
	case errors.As(err, &wrong), errors.As(err, &fault):
		return Usage
	}
	return Broken
}

// onInterrupt calls f as soon as ctx ends. The function that it returns gives
// that up, or waits until f has returned.
func onInterrupt(ctx context.Context, f func()) (done func()) {
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		f()
	})
	return func() {
		if !stop() {
			<-told
		}
	}
}

// split reads a flag's list; empty parts are ignored.
func split(list []string) []string {
	var parts []string
	for _, one := range list {
		if one = strings.TrimSpace(one); one != "" {
			parts = append(parts, one)
		}
	}
	return parts
}
