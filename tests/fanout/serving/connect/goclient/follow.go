package main

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	wire "goclient/wire"
	"goclient/wire/wireconnect"
)

// follower keeps a table's rows by their column id, whatever becomes of its streams: it resumes by
// the sequence and the position of the last entry, after a GoAway by the position alone.
//
// It says what it sees without rows: {"handshake": mode}, {"snapshot": rows}, {"caught_up": sequence},
// {"heartbeat": sequence}, {"go_away": reason}, {"lost": code}. "rows" on stdin has it say its state,
// "drop" has it lose its stream.
type follower struct {
	client    wireconnect.LaredoReplicationServiceClient
	request   *wire.SyncRequest
	rows      map[any]map[string]any
	begun     bool
	goneAway  bool
	entries   int
	repeated  int
	misread   int
	schemas   int
	lastEntry int64
}

func newFollower(client wireconnect.LaredoReplicationServiceClient, request *wire.SyncRequest) *follower {
	return &follower{client: client, request: request, rows: map[any]map[string]any{}}
}

func (f *follower) run(ctx context.Context, commands <-chan string) error {
	for {
		if err := f.follow(ctx, commands); err != nil {
			say(map[string]any{"lost": connect.CodeOf(err).String()})
			switch connect.CodeOf(err) {
			case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument:
				return err
			}
		}
		if !pause(ctx) {
			return ctx.Err()
		}
	}
}

// follow takes one stream's messages; a command is answered between two of them.
func (f *follower) follow(outer context.Context, commands <-chan string) error {
	ctx, cancel := context.WithCancel(outer)
	defer cancel()
	request := f.request
	if f.goneAway {
		request = &wire.SyncRequest{
			Schema: request.Schema, Table: request.Table, ClientId: request.ClientId,
			LastSnapshotId: request.LastSnapshotId, Filters: request.Filters,
			LastKnownSourcePosition: request.LastKnownSourcePosition,
		}
		f.goneAway = false
	}
	stream, err := f.client.Sync(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	messages := make(chan *wire.SyncResponse)
	ended := make(chan error, 1)
	go func() {
		defer stream.Close()
		for stream.Receive() {
			select {
			case messages <- stream.Msg():
			case <-ctx.Done():
			}
		}
		ended <- stream.Err()
	}()
	for {
		select {
		case message := <-messages:
			if f.apply(message) {
				f.goneAway = true
				return nil
			}
		case command := <-commands:
			if command == "drop" {
				cancel()
				return errors.Join(<-ended)
			}
			f.sayRows()
		case err := <-ended:
			if err == nil {
				return errors.New("the stream ended without an error")
			}
			return err
		}
	}
}

// apply takes a message; whether it is a GoAway.
func (f *follower) apply(message *wire.SyncResponse) bool {
	switch got := message.GetMessage().(type) {
	case *wire.SyncResponse_Handshake:
		say(map[string]any{"handshake": got.Handshake.GetMode().String()})
	case *wire.SyncResponse_SnapshotBegin:
		f.rows, f.begun = map[any]map[string]any{}, true
		f.request.LastSnapshotId = got.SnapshotBegin.GetSnapshotId()
		f.request.LastKnownSourcePosition = ""
	case *wire.SyncResponse_SnapshotRow:
		f.put(got.SnapshotRow.GetRow())
	case *wire.SyncResponse_SnapshotEnd:
		f.request.LastKnownSequence = got.SnapshotEnd.GetSequence()
		if f.begun {
			say(map[string]any{"snapshot": len(f.rows)})
		} else {
			say(map[string]any{"caught_up": got.SnapshotEnd.GetSequence()})
		}
		f.begun = false
	case *wire.SyncResponse_JournalEntry:
		f.change(got.JournalEntry)
	case *wire.SyncResponse_SchemaChange:
		f.schemas++
	case *wire.SyncResponse_Heartbeat:
		say(map[string]any{"heartbeat": got.Heartbeat.GetCurrentSequence()})
	case *wire.SyncResponse_GoAway:
		say(map[string]any{"go_away": got.GoAway.GetReason()})
		return true
	}
	return false
}

func (f *follower) change(entry *wire.ReplicationJournalEntry) {
	if entry.GetSequence() <= f.lastEntry {
		f.repeated++
	}
	f.entries++
	f.lastEntry = entry.GetSequence()
	f.request.LastKnownSequence = entry.GetSequence()
	f.request.LastKnownSourcePosition = entry.GetSourcePosition()
	switch entry.GetAction() {
	case "TRUNCATE":
		f.rows = map[any]map[string]any{}
	case "DELETE":
		id := entry.GetOldValues().AsMap()["id"]
		if _, known := f.rows[id]; !known {
			f.misread++
		}
		delete(f.rows, id)
	default:
		f.put(entry.GetNewValues())
	}
}

func (f *follower) put(row *structpb.Struct) {
	values := row.AsMap()
	f.rows[values["id"]] = values
}

func (f *follower) sayRows() {
	rows := make([]map[string]any, 0, len(f.rows))
	for _, row := range f.rows {
		rows = append(rows, row)
	}
	say(map[string]any{
		"rows": rows, "sequence": f.request.LastKnownSequence, "entries": f.entries,
		"repeated": f.repeated, "misread": f.misread, "schemas": f.schemas,
	})
}
