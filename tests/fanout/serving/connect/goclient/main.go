// A Connect client of the tests, by connect-go and code generated from proto/.
//
//	goclient [options] CALL REQUEST
//
// CALL is a method of the service, REQUEST its request as JSON. Each message of the answer is a line
// of JSON on stdout, the last line {"code": ..., "message": ...}, with code "ok" where no error ended
// the call. "cancel" on stdin ends the call. CALL may also be Follow: see follow.go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	wire "goclient/wire"
	"goclient/wire/wireconnect"
)

var (
	url      = flag.String("url", "", "where the server is: http://host:port")
	token    = flag.String("token", "", "sent as Authorization: Bearer")
	deadline = flag.Duration("deadline", 0, "how long the call may take")
	gzip     = flag.Bool("gzip", false, "compress requests")
	asJSON   = flag.Bool("json", false, "speak JSON instead of protobuf")
)

func main() {
	flag.Parse()
	if flag.NArg() != 2 {
		fail(errors.New("CALL and REQUEST are missing"))
	}
	ctx, cancel := context.WithCancel(context.Background())
	if *deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, *deadline)
	}
	defer cancel()
	// The end of stdin means that the test is gone.
	commands := make(chan string)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			if lines.Text() == "cancel" {
				cancel()
				continue
			}
			commands <- lines.Text()
		}
		cancel()
	}()
	say(ending(call(ctx, flag.Arg(0), []byte(flag.Arg(1)), commands)))
}

func call(ctx context.Context, name string, request []byte, commands <-chan string) error {
	client := client()
	switch name {
	case "GetReplicationStatus":
		return unary(ctx, client.GetReplicationStatus, &wire.GetReplicationStatusRequest{}, request)
	case "ListSnapshots":
		return unary(ctx, client.ListSnapshots, &wire.ListSnapshotsRequest{}, request)
	case "FetchSnapshot":
		return stream(ctx, client.FetchSnapshot, &wire.FetchSnapshotRequest{}, request)
	case "Sync":
		return stream(ctx, client.Sync, &wire.SyncRequest{}, request)
	case "Follow":
		asked := &wire.SyncRequest{}
		if err := protojson.Unmarshal(request, asked); err != nil {
			fail(err)
		}
		return newFollower(client, asked).run(ctx, commands)
	}
	fail(fmt.Errorf("no call %s", name))
	return nil
}

func client() wireconnect.LaredoReplicationServiceClient {
	options := []connect.ClientOption{connect.WithInterceptors(authorized{})}
	if *gzip {
		options = append(options, connect.WithSendGzip())
	}
	if *asJSON {
		options = append(options, connect.WithProtoJSON())
	}
	return wireconnect.NewLaredoReplicationServiceClient(http.DefaultClient, *url, options...)
}

func unary[Q, A any, M interface {
	*Q
	proto.Message
}](ctx context.Context, method func(context.Context, *connect.Request[Q]) (*connect.Response[A], error), empty M, request []byte) error {
	if err := protojson.Unmarshal(request, empty); err != nil {
		fail(err)
	}
	answer, err := method(ctx, connect.NewRequest((*Q)(empty)))
	if err == nil {
		sayMessage(any(answer.Msg).(proto.Message))
	}
	return err
}

func stream[Q, A any, M interface {
	*Q
	proto.Message
}](ctx context.Context, method func(context.Context, *connect.Request[Q]) (*connect.ServerStreamForClient[A], error), empty M, request []byte) error {
	if err := protojson.Unmarshal(request, empty); err != nil {
		fail(err)
	}
	messages, err := method(ctx, connect.NewRequest((*Q)(empty)))
	if err != nil {
		return err
	}
	defer messages.Close()
	for messages.Receive() {
		sayMessage(any(messages.Msg()).(proto.Message))
	}
	return messages.Err()
}

// authorized adds the token to each call.
type authorized struct{}

func (authorized) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		authorize(request.Header())
		return next(ctx, request)
	}
}

func (authorized) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		authorize(conn.RequestHeader())
		return conn
	}
}

func (authorized) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func authorize(header http.Header) {
	if *token != "" {
		header.Set("Authorization", "Bearer "+*token)
	}
}

func ending(err error) map[string]any {
	if err == nil {
		return map[string]any{"code": "ok"}
	}
	found := map[string]any{"code": connect.CodeOf(err).String(), "message": err.Error()}
	var sent *connect.Error
	if errors.As(err, &sent) {
		found["message"] = sent.Message()
	}
	return found
}

func sayMessage(message proto.Message) {
	line, err := protojson.Marshal(message)
	if err != nil {
		fail(err)
	}
	say(json.RawMessage(line))
}

func say(what any) {
	line, err := json.Marshal(what)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

// pause waits before the next attempt; false: the test wants no more.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}
