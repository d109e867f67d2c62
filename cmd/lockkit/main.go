// Command lockkit compares lock backends on real servers and checks one by its
// URL. See lockkit --help.
package main

import (
	"os"

	"github.com/lockkit/lock/cmd/lockkit/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
