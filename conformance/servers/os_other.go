//go:build !unix

package servers

import (
	"errors"
	"syscall"
)

// Without signals and process groups nothing is started: see startOwn.
const canStart = false

var errNoProcesses = errors.New("not on this system")

type owner struct{}

func lookupOwner(...string) (*owner, error)   { return nil, errNoProcesses }
func ownGroup() *syscall.SysProcAttr          { return nil }
func attributes(command) *syscall.SysProcAttr { return nil }
func pauseTree(int) error                     { return errNoProcesses }
func resumeTree(int) error                    { return errNoProcesses }
func killTree(pid int, done <-chan struct{})  {}

func chown(string, *owner) error { return errNoProcesses }
