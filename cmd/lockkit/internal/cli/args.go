package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// noArgs refuses arguments. Those may be URLs with passwords: none is shown but
// a plain word.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usage("%s takes no arguments%s", c.Name(), quoted(args[0]))
}

// quoted is empty for what may hold a password.
func quoted(arg string) string {
	if strings.ContainsAny(arg, ":@") {
		return ""
	}
	return fmt.Sprintf(": what is %q for?", arg)
}

// oneURL takes none as well: --list needs none.
func oneURL(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage("verify takes one URL, and here are %d arguments: put a URL that has ? or & in quotes", len(args))
	}
	return nil
}

func oneReport(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("table takes one report, a file that compare --json wrote, and here are %d", len(args))
	}
	return nil
}

// knownCommand is for the root, whose arguments are the names of commands.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if strings.ContainsAny(args[0], ":@") {
		return usage("a URL is no command: write lockkit verify URL")
	}
	return usage("there is no command %q%s", args[0], didYouMean("", nearest(args[0], names)))
}

// suggestFlag has only the texts of the flags to go by: their types are those of
// a module that ours does not name.
func suggestFlag(c *cobra.Command, err error) string {
	var unknown interface{ GetSpecifiedName() string }
	if !errors.As(err, &unknown) || !strings.HasPrefix(err.Error(), "unknown flag") {
		return ""
	}
	var names []string
	for word := range strings.FieldsSeq(c.Flags().FlagUsages()) {
		if name, ok := strings.CutPrefix(word, "--"); ok {
			names = append(names, name)
		}
	}
	return didYouMean("--", nearest(unknown.GetSpecifiedName(), names))
}

func didYouMean(dashes string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ": did you mean " + dashes + strings.Join(names, " or "+dashes) + "?"
}

// nearest are the names that a word may be a misspelling of. cobra knows how to
// find them among commands only, so that they are made commands.
func nearest(word string, names []string) []string {
	c := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range names {
		c.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return c.SuggestionsFor(word)
}
