package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/lockkit/lock/cmd/lockkit/internal/report"
)

const tableLong = `table makes the table for a document from a report that compare --json wrote.
With --into it replaces what stands between the lines ` + report.Begin + ` and
` + report.End + ` of that document.`

// newTable is for the project's own README, so that it is not listed.
func newTable() *cobra.Command {
	var into string
	c := &cobra.Command{
		Use:     "table REPORT.json",
		Short:   "Make a Markdown table of a report",
		Long:    tableLong,
		Example: "  lockkit compare --json report.json && lockkit table report.json --into README.md",
		Hidden:  true,
		Args:    oneReport,
		RunE: func(c *cobra.Command, args []string) error {
			text, err := tableOf(args[0])
			if err != nil {
				return err
			}
			if into == "" {
				_, err = fmt.Fprint(c.OutOrStdout(), text)
				return err
			}
			return insert(into, text)
		},
	}
	c.Flags().StringVar(&into, "into", "", "the document to put it into, a `FILE`")
	return c
}

func tableOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", usage("%w", err)
	}
	defer f.Close()
	r, err := report.Read(f)
	if err != nil {
		return "", usage("%s: %w", file, err)
	}
	return r.Markdown(), nil
}

func insert(file, table string) error {
	document, err := os.ReadFile(file)
	if err != nil {
		return usage("--into: %w", err)
	}
	text, err := report.Insert(string(document), table)
	if err != nil {
		return usage("--into %s: %w", file, err)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
